"""What an explanation knows beside the session's document."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from apc_contracts.explanation.result import clock
from apc_contracts.identity.registry import Right

MISSED = 3
"""Heartbeats that a worker may miss before it counts as gone."""


@dataclass(frozen=True, slots=True)
class AgentPresence:
    """A registered agent, and when the log heard of it last: an emit, a receipt or a HEARTBEAT."""

    is_revoked: bool = False
    last_seen: datetime | None = None
    rights: frozenset[Right] = frozenset()
    swarm_id: str = ""


@dataclass(frozen=True, slots=True)
class OpenDelivery:
    """A delivery that has not ended, or that is a dead letter."""

    packet_id: UUID
    packet_type: str
    recipient: str
    attempt: int
    is_dead: bool = False
    error: str | None = None
    retry_at: datetime | None = None
    """When the next attempt is due; None while the recipient has the packet or should take it."""
    since: datetime | None = None
    """When the packet was routed."""
    is_notice: bool = False
    """A SIGNAL of the orchestrator: a task does not wait for its handler."""


@dataclass(frozen=True, slots=True)
class HeldNote:
    """A packet that is logged and judged later."""

    packet_id: UUID
    packet_type: str
    sender: str


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """How many packets of one sender and type were refused with one code."""

    code: str
    sender: str
    packet_type: str
    packets: int


@dataclass(frozen=True, slots=True)
class StaleDecision:
    """A DECISION whose ground was retracted."""

    packet_id: UUID
    sender: str
    ground_id: UUID
    """What it rests on: retracted, or stale itself."""
    ground_type: str
    ground_sender: str
    retraction_id: UUID | None
    """None: the DECISION came after the retraction."""

    @property
    def words(self) -> str:
        """Return in one sentence what was retracted, and the command that shows what else rests on it."""
        how = "was retracted" if self.retraction_id else "was retracted, or rests on a retracted packet,"
        when = f" (RETRACTION {self.retraction_id})" if self.retraction_id else " before it"
        return (
            f"DECISION {self.packet_id} of {self.sender} is stale: {self.ground_type} {self.ground_id} of "
            f"{self.ground_sender} {how}{when}; `apc packet impact {self.ground_id}` lists what rests on it"
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The registry, the deliveries and the time, as the log has them."""

    now: datetime
    agents: Mapping[str, AgentPresence]
    deliveries: tuple[OpenDelivery, ...] = ()
    held: tuple[HeldNote, ...] = ()
    stale: tuple[StaleDecision, ...] = ()
    refusals: tuple[RefusalCount, ...] = ()
    """Of this session, the latest kind first."""
    silence: timedelta = field(default=timedelta(seconds=30))
    """How long a live worker is silent before it sends a HEARTBEAT."""

    def describe(self, agent_id: str) -> str:
        """Return the agent's id and what is known of it."""
        presence = self.agents.get(agent_id)
        if presence is None:
            return f"{agent_id}, which is not registered (`apc agent add {agent_id} …`)"
        if presence.is_revoked:
            return f"{agent_id}, which is revoked (`apc agent add {agent_id} …` registers it again)"
        if presence.last_seen is None:
            return f"{agent_id}, which is registered but never had a worker"
        if not self.is_live(agent_id):
            return f"{agent_id}, which is registered but has no live worker since {clock(presence.last_seen)}"
        return f"{agent_id}, which is live"

    def is_live(self, agent_id: str) -> bool:
        """Return whether the agent is registered and was heard of lately."""
        presence = self.agents.get(agent_id)
        if presence is None or presence.is_revoked or presence.last_seen is None:
            return False
        return self.now - presence.last_seen <= MISSED * self.silence

    def advice(self, agents: tuple[str, ...]) -> str:
        """Return what to do about agents that cannot act; "" when all are live."""
        if any(self._is_unknown(agent) for agent in agents):
            return " Register the agents that are not registered, and start their workers."
        if any(not self.is_live(agent) for agent in agents):
            return " Start the missing workers (`apc worker MODULE:AGENT`): what waits in their inboxes is delivered."
        return ""

    def _is_unknown(self, agent_id: str) -> bool:
        presence = self.agents.get(agent_id)
        return presence is None or presence.is_revoked
