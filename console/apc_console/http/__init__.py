"""The HTTP server of the services, and the health pages of each."""
