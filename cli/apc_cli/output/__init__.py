"""The input and output of commands: tables, JSON, foreign text made harmless."""
