"""`apc protocol`: the protocols that agents transfer, and their effectiveness."""
