"""The typed payloads of the packet types."""
