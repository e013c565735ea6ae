"""The process of an agent."""
