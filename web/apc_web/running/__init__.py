"""The running system: its services, its agents and the queues between them."""
