"""Compression of a window, and its reversal."""
