"""The label `agent` of a metric: each value is its own time series, so there may only be so many of them."""

MOST_AGENTS = 200
"""Agents that have their own value in one process."""
OTHERS = "_others"
"""What counts for all agents beyond them; no agent_id begins with `_`."""

_known: dict[str, str] = {}


def agent_label(agent_id: str) -> str:
    """Return the label's value for an agent: its id, or OTHERS once MOST_AGENTS have one.

    Stable for the lifetime of a process.
    """
    known = _known.get(agent_id)
    if known is not None:
        return known
    if len(_known) >= MOST_AGENTS:
        return OTHERS
    return _known.setdefault(agent_id, agent_id)
