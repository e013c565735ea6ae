"""The health pages of the services over HTTP."""
