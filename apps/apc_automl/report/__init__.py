"""What a run found, read from the log: events, outcome, report."""
