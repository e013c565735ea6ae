"""`apc effect`: effects of agents on the world outside."""
