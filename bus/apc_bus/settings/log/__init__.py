"""Settings of the log: its writer, its key, and the encryption of bodies."""
