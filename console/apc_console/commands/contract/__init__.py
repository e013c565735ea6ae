"""`apc contract`: check, show and compare the contract file."""
