"""`apc effect`: side effects of agents on the outside world."""
