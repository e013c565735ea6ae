"""Effects whose outcome is unknown are settled over the API, with the role that may do nothing else."""
