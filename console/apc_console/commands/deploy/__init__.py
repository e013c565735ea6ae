"""`apc deploy`: prepare a deployment."""
