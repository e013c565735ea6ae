"""Sessions from the log, as a gate that takes a shard needs them."""
