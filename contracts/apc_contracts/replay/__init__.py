"""Replay: recompute every verdict and every transition of a session from its log alone."""
