"""`apc key`: the signing keys of agents."""
