"""Follow packets: what a packet caused, what rests on it, and how protocols spread."""
