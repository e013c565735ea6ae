"""What a session knows: what is new, what rests on what, what is stale or superseded, and loops."""
