"""The envelope of a packet: its parts, the 14 concrete packets, and the claim check."""
