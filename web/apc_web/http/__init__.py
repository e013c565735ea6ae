"""The HTTP server of the services: limits, and checks of Host, Origin and content type."""
