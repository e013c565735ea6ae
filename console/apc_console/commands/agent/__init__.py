"""`apc agent`: who may take part, who does, and what waits for whom."""
