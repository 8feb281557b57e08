"""What users bring, read with limits; what unsum writes, written whole or not at all."""
