"""The live feed: new entries of the log, as server-sent events."""
