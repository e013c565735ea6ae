"""What an explanation knows beside the session's document: agents, deliveries, refusals, doubts, effects."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from shlex import quote
from typing import Any
from uuid import UUID

from apc_contracts.explanation.failure import Failure
from apc_contracts.explanation.words import MOST_DELIVERIES, clock
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.vocabulary import Right

MISSED = 3
"""Heartbeats that a worker may miss before it counts as gone."""


@dataclass(frozen=True, slots=True)
class AgentPresence:
    """A registered agent, and when it was heard of last: by a packet, a receipt, or a change of its host."""

    is_revoked: bool = False
    last_seen: datetime | None = None
    rights: frozenset[Right] = frozenset()
    swarm_id: str = ""
    is_host_present: bool | None = None
    """Whether the host on which it runs is here; None = it has none, or nobody knows."""


@dataclass(frozen=True, slots=True)
class OpenDelivery:
    """A delivery that has not ended."""

    packet_id: UUID
    packet_type: str
    recipient: str
    attempt: int
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
    """How many packets of one sender and type were refused with one code, and by which rule of a team."""

    code: str
    sender: str
    packet_type: str
    packets: int
    rule: str | None = None
    """Of RULE_FAILED."""
    refusal: Mapping[str, Any] | None = None
    """The newest refusal's document."""

    @property
    def words(self) -> str:
        """What a team's rule said to the newest of them, and the remedy."""
        refusal = self.refusal or {}
        remedy = remedy_of(self.code, refusal=refusal).removesuffix(".")
        said = str(refusal.get("message") or "").removesuffix(".")
        return f"{self.packet_type} of {self.sender} ({self.kind}): {said}. Remedy: {remedy}."

    @property
    def kind(self) -> str:
        """The code and the rule, and how often if more than once."""
        times = f", {self.packets} times" if self.packets > 1 else ""
        return f"{self.code}{f' {self.rule}' if self.rule else ''}{times}"


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
        """What was retracted in one sentence, and the command that shows what else rests on it."""
        how = "was retracted" if self.retraction_id else "was retracted, or rests on a retracted packet,"
        when = f" (RETRACTION {self.retraction_id})" if self.retraction_id else " before it"
        return (
            f"DECISION {self.packet_id} of {self.sender} is stale: {self.ground_type} {self.ground_id} of "
            f"{self.ground_sender} {how}{when}; `apc packet impact {self.ground_id}` lists what rests on it"
        )


@dataclass(frozen=True, slots=True)
class FailedVerification:
    """A packet whose evidence or artifact failed verification."""

    packet_id: UUID
    packet_type: str
    sender: str
    error: str | None


@dataclass(frozen=True, slots=True)
class RefusedUsage:
    """What an agent reported as spent on a task, of which a part was not charged to any budget."""

    agent_id: str
    task_id: str
    resource: str
    """tokens or cost."""
    reported: float
    refused: float

    @property
    def words(self) -> str:
        """What was reported and refused, in one sentence."""
        unit = "tokens" if self.resource == "tokens" else "of cost"
        return (
            f"{self.agent_id} reported {amount_text(self.reported)} {unit}, of which {amount_text(self.refused)} were "
            f"refused as too large and not charged: task {self.task_id} may have spent more than its budget shows."
        )


def amount_text(amount: float) -> str:
    """Return an amount with at most ten digits and separated thousands."""
    return f"{amount:,.0f}" if amount >= 10_000_000_000 or amount == int(amount) else f"{amount:,.10g}"


@dataclass(frozen=True, slots=True)
class Doubts:
    """Why what came of a session is open to doubt, though it has closed."""

    stale: tuple[StaleDecision, ...] = ()
    failed: tuple[FailedVerification, ...] = ()
    dead: tuple[Failure, ...] = ()
    usage: tuple[RefusedUsage, ...] = ()
    """What was reported as spent and not charged."""
    halted_by: Failure | None = None
    """The failure that halted the session."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Each doubt in a sentence, at most 5 of a kind."""
        stale = [f"{decision.words}." for decision in self.stale[:MOST_DELIVERIES]]
        failed = [
            f"The verification of {one.packet_type} {one.packet_id} of {one.sender} failed: {one.error or 'no reason'}."
            for one in self.failed[:MOST_DELIVERIES]
        ]
        dead = [f"{one.sentence} {one.remedy}" for one in self.dead[:MOST_DELIVERIES]]
        return (*stale, *failed, *dead, *self.of_usage)

    @property
    def of_usage(self) -> tuple[str, ...]:
        """What was spent beyond what the budget shows, a sentence each, the largest parts first."""
        largest = sorted(self.usage, key=lambda one: -one.refused)
        return tuple(one.words for one in largest[:MOST_DELIVERIES])


UNSETTLED_EFFECTS = frozenset({"claimed", "unknown"})
"""Where an effect stands of which nobody knows yet whether it was made."""


@dataclass(frozen=True, slots=True)
class UnsettledEffect:
    """An effect outside the bus that was begun, and whose end is not in the log."""

    packet_id: UUID
    agent_id: str
    key: str
    state: str

    def words(self, dead: UUID | None = None) -> str:
        """Return the effect in a sentence, and what to do about it; `dead` is the dead letter that waits for that.

        The dead letter is another packet where the handler had waited: the answer with which it went on.
        """
        what = f"The effect {self.key} of {self.agent_id} for packet {self.packet_id}"
        if self.state == "claimed":
            return f"{what} is claimed: {self.agent_id} makes it now, or stopped before it reported how that ended."
        settle = f"`apc effect settle {self.packet_id} {self.agent_id} {quote(self.key)}`"
        then = "" if dead is None else f", then `apc dead-letter requeue {dead}`"
        how = "with `--result JSON` if it has happened, with `--not-made` if it has not"
        return f"{what} is unknown: find out whether it happened, settle it by {settle} {how}{then}."


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The registry, the deliveries and the time, as the log has them."""

    now: datetime
    agents: Mapping[str, AgentPresence]
    deliveries: tuple[OpenDelivery, ...] = ()
    held: tuple[HeldNote, ...] = ()
    doubts: Doubts = field(default_factory=Doubts)
    refusals: tuple[RefusalCount, ...] = ()
    """Of this session, the latest kind first."""
    effects: tuple[UnsettledEffect, ...] = ()
    shared_user: str | None = None
    """The broker user who has published for all agents of the session; None: they have different ones."""
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
        """Return whether the agent is registered, and its host is here or it was heard of lately."""
        presence = self.agents.get(agent_id)
        if presence is None or presence.is_revoked or presence.last_seen is None:
            return False
        if presence.is_host_present is not None:
            return presence.is_host_present
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
