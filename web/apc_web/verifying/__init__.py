"""The verification of the log: a job in a separate process."""
