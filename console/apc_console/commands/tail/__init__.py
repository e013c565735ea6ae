"""`apc tail`: follow the log at a terminal."""
