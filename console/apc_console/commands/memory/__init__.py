"""`apc memory`: what agents store about users."""
