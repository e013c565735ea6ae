"""What an LLM agent keeps of a session, apart for each clearance: no sender is answered out of another one's words."""

from typing import Any, Final

from apc_agents.actions.action_context import Stateful

COMPARTMENTS: Final = "compartments"
"""The key in ctx.state: conversation and remembered values by the name of their compartment."""


class Compartment:
    """One part of a state document: the conversation, and what is remembered, of senders with the same rights."""

    def __init__(self, owner: Stateful, name: str) -> None:
        self._owner = owner
        self.name = name

    @property
    def state(self) -> dict[str, Any]:
        """The part; what is written into it is kept with the owner's document."""
        part: dict[str, Any] = self._owner.state.setdefault(COMPARTMENTS, {}).setdefault(self.name, {})
        return part

    @property
    def archive_prefix(self) -> str:
        """With which the ids of its folded turns and recorded answers begin."""
        return f"{self.name}/"
