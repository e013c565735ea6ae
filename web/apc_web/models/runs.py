"""Runs and sessions."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from apc_web.models.model_base import NEXT, ApiModel, NamedCount


class RunSummary(ApiModel):
    """One run: what its sessions add up to."""

    run_id: str
    sessions: int
    running: int
    """Sessions that have not ended."""
    states: list[NamedCount]
    """How many sessions are in each state."""
    session_ids: list[str]
    """The sessions that changed last, at most 20."""
    spent: dict[str, float]
    """packets, tokens and cost of all its sessions."""
    open_deliveries: int
    updated_at: datetime


class RunPage(ApiModel):
    """Runs, the one that changed last first."""

    items: list[RunSummary]
    next: str | None = NEXT


class SessionSummary(ApiModel):
    """One session in a list."""

    session_id: str
    run_id: str
    task_id: str
    shard: int
    state: str
    run_phase: str
    is_terminal: bool
    is_paused: bool
    round: int
    generation: int
    open_deliveries: int
    spent: dict[str, float]
    opened_at: datetime
    updated_at: datetime
    halt_reason: str | None


class SessionPage(ApiModel):
    """Sessions, the one that changed last first."""

    items: list[SessionSummary]
    next: str | None = NEXT


class BudgetPart(ApiModel):
    """What one task may spend of a resource; task '' is the session's own part."""

    task: str
    resource: str
    """packets, tokens, cost or wall_ms."""
    limit: float | None
    spent: float | None
    left: float


class SessionMember(ApiModel):
    """An agent of a session."""

    agent_id: str
    swarm: str | None
    is_live: bool
    """A barrier waits for it."""


class SessionDeadline(ApiModel):
    """A timer of a session. It stands still while the session is paused."""

    kind: str
    due: datetime


class HeldPacketSummary(ApiModel):
    """A packet that is held until a barrier or until RESUME."""

    packet_id: UUID
    packet_type: str
    sender: str
    since: datetime


class SessionWait(ApiModel):
    """What a session waits for."""

    kind: str
    """paused, question, barrier, acknowledgement, delivery, verification, held, deadline or dead_letter."""
    words: str
    """One sentence."""
    due: datetime | None = None
    agents: list[str] = Field(default_factory=list)
    packet_ids: list[UUID] = Field(default_factory=list)


class StaleDecisionSummary(ApiModel):
    """A DECISION that rests on a retracted packet."""

    packet_id: UUID
    ground_id: UUID
    """What it rests on: retracted, or stale itself."""
    words: str
    """One sentence, with the command that shows what else rests on it."""


class MachineState(ApiModel):
    """A state of a machine, in the order of the contract."""

    name: str
    run_phase: str | None
    is_terminal: bool


class MachineEdge(ApiModel):
    """A transition that the machine allows."""

    event: str
    from_state: str
    to_state: str


class SessionMachine(ApiModel):
    """The machine that a session or a packet moves through."""

    states: list[MachineState]
    edges: list[MachineEdge]


class SessionDetail(SessionSummary):
    """Everything about one session but its packets."""

    step: int
    generation_limit: int
    max_rounds: int
    opener: str
    paused_at: datetime | None
    first_seq: int
    """Position of its first packet in the log of its shard."""
    last_seq: int
    """Position of its last entry."""
    packets: int
    verdicts: list[NamedCount]
    """Packets by verdict on arrival."""
    refusals: list[NamedCount]
    """Refused packets by code, the most frequent first."""
    dead: int
    """Deliveries that are dead letters now."""
    waits: list[SessionWait]
    budgets: list[BudgetPart]
    members: list[SessionMember]
    deadlines: list[SessionDeadline]
    held: list[HeldPacketSummary]
    stale_decisions: list[StaleDecisionSummary]
    """The newest, at most 5."""
    machine: SessionMachine


class SessionMove(ApiModel):
    """A transition or a barrier that happened."""

    seq: int
    at: datetime
    event: str
    from_state: str
    to_state: str
    round: int
    generation: int
    step: int
    cause_packet_id: UUID


class SessionMoves(ApiModel):
    """The moves of a session, oldest first."""

    items: list[SessionMove]
    next: str | None = NEXT


class GenerationScore(ApiModel):
    """An EVAL of a session."""

    seq: int
    at: datetime
    packet_id: UUID
    agent: str
    swarm: str
    round: int
    generation: int
    verdict: str
    outcome: float | None
    drift_risk: float | None
    """Null where the body is sealed."""


class GenerationTransfer(ApiModel):
    """A TRANSFER between swarms."""

    seq: int
    at: datetime
    packet_id: UUID
    round: int
    generation: int
    protocol_id: str
    from_swarm: str | None
    to_swarm: str | None
    verdict: str
    refusal_code: str | None
    """Of the final verdict."""


class SessionScores(ApiModel):
    """Scores by generation and swarm, and the transfers between them; in the order of the log, at most 5,000 each."""

    scores: list[GenerationScore]
    transfers: list[GenerationTransfer]
    is_cut: bool
