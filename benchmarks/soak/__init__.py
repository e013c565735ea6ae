"""A seeded random kill loop over the whole system: `make soak MINUTES=10 SEED=1`."""
