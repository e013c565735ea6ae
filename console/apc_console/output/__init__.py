"""What a command reads and prints: tables, JSON, foreign text made harmless."""
