"""A session at a position: a fold over recorded columns."""
