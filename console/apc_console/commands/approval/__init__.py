"""`apc approval`: questions to people, and their answers."""
