"""What the gate is told about a packet and its session, and what it says: facts, view, quotas, verdict."""
