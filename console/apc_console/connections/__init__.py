"""What a command connects to: the broker, the database, the gate."""
