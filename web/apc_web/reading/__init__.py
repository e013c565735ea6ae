"""What the routes return, read from the log and put into words."""
