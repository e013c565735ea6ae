"""`apc ui` and `apc serve web`: the web console."""
