"""`apc topology`: queues, exchanges and users of the broker."""
