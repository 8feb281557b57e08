"""Speed, memory, limits and searches; bench/README.md has a line for each."""
