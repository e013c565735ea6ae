"""Agents that speak the user's types: pydantic models as contents of MESSAGEs."""
