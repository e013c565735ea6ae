"""`apc schema`: register, list and show the schemas of typed content."""
