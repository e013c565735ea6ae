"""`apc user`: the accounts of the web console."""
