"""Waits of a handler: what it asks, the records of its calls, and the run that goes on where they end."""
