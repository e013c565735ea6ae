"""Conversations with the LLM agent of this server."""
