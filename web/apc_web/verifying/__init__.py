"""Proofs as files, and the verification of the log: a job in a separate process."""
