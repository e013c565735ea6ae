"""The HTTP API of the web console, and the server of its page."""
