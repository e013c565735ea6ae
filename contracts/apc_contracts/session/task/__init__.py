"""The coordinator `task`: work, review, an end (docs/explanation/contracts.md)."""
