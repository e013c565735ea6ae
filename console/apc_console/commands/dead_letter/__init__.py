"""`apc dead-letter`: deliveries that failed permanently, and what to do with them."""
