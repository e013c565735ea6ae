"""`apc deploy`: what a deployment needs before it starts."""
