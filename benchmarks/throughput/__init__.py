"""Packets from one agent to the next, beside the raw limit of the same road."""
