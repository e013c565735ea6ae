"""`apc serve`: services as processes of their own."""
