"""The connections of a command: the broker, the database, the gate."""
