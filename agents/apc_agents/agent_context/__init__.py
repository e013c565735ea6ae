"""The context object of an agent, and how relevant a message is in it (docs/reference/agent-context.md)."""
