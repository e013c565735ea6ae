"""The whole system, in one process or in supervised ones."""
