"""A federated training with Flower whose updates are audited by unsum as they come in."""
