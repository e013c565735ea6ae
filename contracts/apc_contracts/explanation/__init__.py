"""A session explained in words: what it waits for, what would move it, and why it ended."""
