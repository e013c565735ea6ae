"""Agents that the spec of a session names and that nobody has registered."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from apc_contracts.payloads.session_signals import SessionSpec, TaskSessionSpec

MOST_NAMED = 3
"""Registered ids that are proposed for an unknown one."""


@dataclass(frozen=True, slots=True)
class Unregistered:
    """One agent id of a SessionSpec without a registration."""

    path: str
    """`swarms[0].agents[1]`"""
    agent_id: str
    nearest: tuple[str, ...]
    """Registered ids that look like it, the nearest first."""

    @property
    def sentence(self) -> str:
        """Return where it stands, and what may be meant."""
        meant = f": do you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return f"{self.path}: agent {self.agent_id} is not registered{meant}"


def find_unregistered(spec: SessionSpec | TaskSessionSpec, registered: Collection[str]) -> list[Unregistered]:
    """Return the agents of a SessionSpec that are not among the registered ones, in the order of the document."""
    return [
        Unregistered(path, agent, tuple(get_close_matches(agent, registered, n=MOST_NAMED)))
        for path, agent in _named(spec)
        if agent not in registered
    ]


def _named(spec: SessionSpec | TaskSessionSpec) -> Iterator[tuple[str, str]]:
    for place, swarm in enumerate(() if isinstance(spec, TaskSessionSpec) else spec.swarms):
        for index, agent in enumerate(swarm.agents):
            yield f"swarms[{place}].agents[{index}]", agent
    for index, agent in enumerate(spec.members):
        yield f"members[{index}]", agent
