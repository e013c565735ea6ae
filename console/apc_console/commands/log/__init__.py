"""`apc log`: check, export, erase and rebuild the evidence of the log."""
