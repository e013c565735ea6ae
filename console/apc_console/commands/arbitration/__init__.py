"""`apc arbitration`: what was arbitrated, and how."""
