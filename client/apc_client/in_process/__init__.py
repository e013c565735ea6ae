"""The whole system in this process."""
