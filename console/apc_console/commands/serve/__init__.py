"""`apc serve`: each service as a process."""
