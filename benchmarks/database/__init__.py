"""The log and the memory of the agents in Postgres: filling, writing, reading, backup and restore."""
