"""`apc contract`: the contract file, checked, shown and compared."""
