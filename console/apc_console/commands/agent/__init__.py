"""`apc agent`: register agents, list them, and see what waits for them."""
