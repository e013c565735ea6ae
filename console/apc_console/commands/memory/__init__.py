"""`apc memory`: what agents keep."""
