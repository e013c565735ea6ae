"""What a worker takes from its queues."""
