"""Changes of the registry: agents, schemas, contracts; sent to the gates, and awaited in the log."""
