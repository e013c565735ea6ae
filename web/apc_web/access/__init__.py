"""Who may ask: tokens, hosts, origins, headers."""
