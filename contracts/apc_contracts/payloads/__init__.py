"""The typed payloads of the 14 packet types."""
