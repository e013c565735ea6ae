"""The envelope of a packet: its parts, the concrete packets, and the claim check."""
