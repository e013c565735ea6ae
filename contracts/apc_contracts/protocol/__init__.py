"""Protocols that agents transfer: evidence, lineage, decay, and how TRANSFERs compare."""
