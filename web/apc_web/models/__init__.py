"""What the routes return: frozen models; times in UTC, ids as text."""
