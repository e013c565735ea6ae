"""Verify a log: recompute the tree and everything derived, and report findings."""
