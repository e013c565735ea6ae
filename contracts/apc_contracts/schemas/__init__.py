"""The schemas of typed content: checked when they are registered, used by the gate to judge MESSAGE."""
