"""`apc protocol`: the protocols that agents transfer, and how they do."""
