"""The artifact store and the upload to it."""
