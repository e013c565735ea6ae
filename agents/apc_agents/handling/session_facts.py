"""What a handler reads of its packet and session; a run that goes on after a wait reads what the earlier run read."""

from collections.abc import Callable
from typing import TypeVar

from apc_agents.handling.invocation import Invocation
from apc_contracts.identity.registry import Right
from apc_contracts.packet import Packet
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import RunPhase

FactT = TypeVar("FactT")


class SessionFacts:
    """The facts of one invocation."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation

    @property
    def packet(self) -> Packet:
        """The handled packet. Raises AgentError in on_start, where there is none."""
        return self._invocation.packet

    @property
    def sender_rights(self) -> frozenset[Right]:
        """The rights of the packet's sender, as the gate knows them."""
        rights = self._invocation.sender_rights
        return self._noted("sender_rights", lambda: rights)

    @property
    def session_id(self) -> str:
        """The packet's session."""
        return self.packet.trace.session_id

    @property
    def run_id(self) -> str:
        """The packet's run."""
        return self.packet.trace.run_id

    @property
    def task_id(self) -> str:
        """The packet's task."""
        return self.packet.trace.task_id

    @property
    def run_phase(self) -> RunPhase:
        """The session's phase, as the newest delivery or SYNC told; it may change while the handler runs."""
        return self._noted("run_phase", lambda: self._invocation.knowledge.moment.run_phase)

    @property
    def round(self) -> int:
        """The session's round, as run_phase."""
        return self._noted("round", lambda: self._invocation.knowledge.moment.round)

    @property
    def generation(self) -> int:
        """The session's generation, as run_phase."""
        return self._noted("generation", lambda: self._invocation.knowledge.moment.generation)

    @property
    def step(self) -> int:
        """The session's step, as run_phase."""
        return self._noted("step", lambda: self._invocation.knowledge.moment.step)

    @property
    def session_state(self) -> SessionState | None:
        """What the last SYNC of the session said (scores, subjects, paused); None before the first one."""
        return self._noted("session_state", lambda: self._invocation.knowledge.sync)

    def _noted(self, fact: str, read: Callable[[], FactT]) -> FactT:
        """Return a fact as this run of the handler found it."""
        return self._invocation.journal.note(fact, str, read)
