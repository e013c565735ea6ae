"""What an operator does to a running system: the command line and the API call the same functions."""
