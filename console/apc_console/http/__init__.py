"""The one HTTP server of the services, and what each says of itself."""
