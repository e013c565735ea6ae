"""Who takes part: agent ids and swarms of the reference run, and when its swarms work."""

from apc_automl.training.spaces import SWARMS

LIBRARIAN = "librarian"
LIBRARY_SWARM = "library"
SENTINEL = "sentinel"
SENTINEL_SWARM = "sentinel"
CONVERGENCE = "CONTROLLED_CONVERGENCE"
WORKING_STATES = frozenset({"INDEPENDENT_DISCOVERY", "SELECTIVE_TRANSFER", CONVERGENCE})
"""The session's states in which swarms make generations."""


def builder_id(swarm: str) -> str:
    """Return the agent id of a swarm's builder."""
    return f"builder-{swarm}"


BUILDERS = tuple(builder_id(swarm) for swarm in SWARMS)
