"""`apc session`: the state of sessions, and an operator's control of them."""
