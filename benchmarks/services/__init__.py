"""The running services: what grows with sessions, agents and shards, how long a start and a takeover last."""
