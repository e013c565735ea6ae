"""The user's table: reading, cleaning, profiling, splitting."""
