"""The web console served on a port, and a real browser that reads it."""
