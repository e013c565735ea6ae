"""Export checkpoints out of the database."""
