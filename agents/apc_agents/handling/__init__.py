"""One run of a handler: its context, its state, and how it ends."""
