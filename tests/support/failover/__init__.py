"""A Postgres that fails over, and what stands in front of it."""
