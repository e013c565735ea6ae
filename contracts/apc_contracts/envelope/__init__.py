"""The envelope of a packet: its parts, the 14 concrete packets, and what travels outside of it."""
