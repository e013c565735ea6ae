"""`apc session`: where sessions stand, and an operator's word to them."""
