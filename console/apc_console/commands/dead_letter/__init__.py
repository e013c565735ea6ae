"""`apc dead-letter`: deliveries that came to nothing, and what becomes of them."""
