"""The state document of a session: every log batch carries it, and the projection `sessions` holds it.

Bounded: it does not grow with the number of packets. What does (ids, open deliveries, held packets) is read from the
log when a session is loaded.
"""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID
from zlib import crc32

import msgspec
import orjson

from apc_contracts.judging.dossier import Counters
from apc_contracts.vocabulary import PROTOCOL_1_1, PROTOCOL_VERSION, RunPhase

CANDIDATES_KEPT = 16
"""Verified EVALs remembered per swarm, best first: enough to outlast every round, veto and retraction."""
KEYS_KEPT = 1000
"""How many names are remembered for the drift checks and the loop guard, since each batch carries the document whole.

They are the newest symbolic keys, and the first tasks and protocols.
"""
LONGEST_KEY = 64
"""Characters kept of a longer symbolic key."""


@dataclass(slots=True)
class VerifiedCandidate:
    """A VERIFIED EVAL of a swarm."""

    packet_id: UUID
    swarm_id: str
    agent_id: str
    outcome: float
    round: int
    generation: int

    @property
    def candidate_id(self) -> str:
        """Its name in an arbitration.

        It describes the candidate instead of using the packet's id, so that two runs that do the same work break a tie
        alike.
        """
        return f"{self.swarm_id}.{self.round}.{self.generation}"

    @property
    def rank(self) -> tuple[float, str, int, int, str]:
        """The sort key, best first: by outcome, then by candidate_id."""
        return -self.outcome, self.swarm_id, self.round, self.generation, str(self.packet_id)


@dataclass(slots=True)
class Arbitration:
    """The candidate arbitration in force: its winner, and the vetoes against it (packet_id -> overridden)."""

    packet_id: UUID
    candidate: VerifiedCandidate
    """The winner, kept whole: the pool may forget it."""
    vetoes: dict[UUID, bool] = field(default_factory=dict)
    is_approved: bool = False
    """A DECISION APPROVED was admitted; it takes effect when there is no veto."""

    @property
    def winner(self) -> UUID:
        return self.candidate.packet_id

    @property
    def is_vetoed(self) -> bool:
        return bool(self.vetoes)

    @property
    def is_overridden(self) -> bool:
        return all(self.vetoes.values())


@dataclass(slots=True)
class WinnerExecution:
    """What the winner built in EXECUTION and how it was judged in VALIDATION."""

    artifact: UUID | None = None
    artifact_hash: str = ""
    artifact_uri: str = ""
    evals: list[UUID] = field(default_factory=list)
    """EVALs of the winner, by their parent ARTIFACT."""
    judged_by: UUID | None = None
    """The validating EVAL, once it is VERIFIED."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the validating EVAL."""
    failed_metrics: list[str] | None = None
    """Empty = the promotion gate passed; None = not judged yet."""
    is_retracted: bool = False
    is_falsified: bool = False
    """Its bytes failed verification."""


@dataclass(slots=True)
class RoundState:
    """Counters of the current round."""

    ready: list[str] = field(default_factory=list)
    """Swarms whose SYNC of generation 0 was admitted."""
    evaluated: list[str] = field(default_factory=list)
    """Swarms with an admitted EVAL for the open generation."""
    accepted_transfers: dict[str, int] = field(default_factory=dict)
    """to_swarm -> TRANSFERs accepted in the open generation."""
    smallest_top_k: dict[str, int] = field(default_factory=dict)
    """to_swarm -> the smallest top_k of the TRANSFERs that were in order in the open generation."""
    queried: list[int] = field(default_factory=list)
    """Checksums of the groups of senders that were queried about a loop in the open generation."""
    arbitration: Arbitration | None = None
    winner: VerifiedCandidate | None = None
    execution: WinnerExecution = field(default_factory=WinnerExecution)
    protocol_artifact: UUID | None = None
    """The orchestrator's ARTIFACT(PROTOCOL), which opens the commons."""
    has_generation_expired: bool = False
    is_commit_sent: bool = False
    """The orchestrator's DECISION DONE is in flight: nothing more was expected in PROMOTION."""
    is_committed: bool = False
    """The orchestrator's DECISION DONE was admitted."""


@dataclass(slots=True)
class TaskBudget:
    """The part of the budget that is reserved for a task; without limits it records where the task draws from."""

    parent: str
    """The task whose part it was cut from; '' = the session."""
    giver: str = ""
    """Who sent the TASK_IR that reserved it."""
    is_reserved: bool = False
    limits: dict[str, float] = field(default_factory=dict)
    """packets, tokens, cost."""
    cut_from: dict[str, str] = field(default_factory=dict)
    """For each limit, the task whose part it was taken from; '' = the session's."""
    spent: dict[str, float] = field(default_factory=dict)
    """Drawn from this part, without the parts cut out of it; never more than the limits."""
    reserved: dict[str, float] = field(default_factory=dict)
    """The share of its limits that was cut out for other tasks."""
    wall_due: datetime | None = None


@dataclass(slots=True)
class PendingAck:
    """A routed packet that waits for the ACK or NACK of some of its recipients."""

    sender: str
    missing: list[str]
    timeout_ms: int
    retry_limit: int
    """How often it is routed again before its sender is told."""
    attempt: int = 1
    """How often it was routed so far; one deadline per attempt covers all missing recipients."""


@dataclass(slots=True)
class SessionDocument:
    """Everything that a session's future depends on, except packets."""

    session_id: str
    run_id: str
    task_id: str
    opener: str
    contract_hash: str
    start_packet_id: UUID
    opened_at: datetime
    swarms: dict[str, list[str]]
    members: list[str]
    task_ids: list[str]
    generation_limit: int
    generation_deadline_ms: int
    state_deadline_ms: int
    max_rounds: int
    veto_window_ms: int
    budgets: dict[str, float]
    state: str
    run_phase: RunPhase
    round: int = 1
    generation: int = 0
    step: int = 0
    phase_step: int = 0
    generation_step: int = 0
    """The step at which the open generation began."""
    paused_at: datetime | None = None
    deadlines: dict[str, datetime] = field(default_factory=dict)
    """Kind of timer -> when it is due; they stand still while the session is paused."""
    emitted: int = 0
    """Packets the orchestrator emitted in this session; the ordinal of the next id."""
    superseded: dict[UUID, UUID] = field(default_factory=dict)
    """ARBITRATIONs and DECISIONs superseded, but not finished for each recipient -> the superseding packet."""
    verifying: int = 0
    """Packets whose verification has begun and has no result yet."""
    spent: dict[str, float] = field(default_factory=dict)
    """packets, tokens, cost drawn from the budgets, by all tasks together."""
    task_budgets: dict[str, TaskBudget] = field(default_factory=dict)
    reserved: dict[str, float] = field(default_factory=dict)
    """Share of the session's own part that was cut out for tasks."""
    spent_in_parts: dict[str, float] = field(default_factory=dict)
    """Share of `spent` that was drawn from the tasks' parts."""
    halt_reason: str | None = None
    convergence_generations: int = 0
    """Generations that follow the limit, in CONTROLLED_CONVERGENCE."""
    search_ms: int | None = None
    """Time from START after which the open generation is the last one; None = no such limit."""
    briefs: dict[str, list[str]] = field(default_factory=dict)
    """swarm_id -> symbolic keys of its latest research brief, until all briefs are different enough."""
    missed_barriers: dict[str, int] = field(default_factory=dict)
    dead_swarms: list[str] = field(default_factory=list)
    dead_agents: list[str] = field(default_factory=list)
    candidates: dict[str, list[VerifiedCandidate]] = field(default_factory=dict)
    best_outcomes: dict[str, float] = field(default_factory=dict)
    """swarm_id -> its best verified outcome."""
    excluded: list[UUID] = field(default_factory=list)
    """Candidates that failed validation or were struck by a veto."""
    last_generations: dict[str, int] = field(default_factory=dict)
    """Round (as text) -> its last generation."""
    symbolic_keys: list[str] = field(default_factory=list)
    evidence: list[int] = field(default_factory=list)
    """Checksums of the newest evidence_refs, oldest first."""
    protocols: dict[str, list[str]] = field(default_factory=dict)
    """protocol_id -> swarms that hold it."""
    round_state: RoundState = field(default_factory=RoundState)
    pending_acks: dict[UUID, PendingAck] = field(default_factory=dict)
    overdue_acks: dict[UUID, list[str]] = field(default_factory=dict)
    """Packet -> the recipients whose ACK is no longer waited for; the oldest are forgotten."""
    counters: Counters | None = None
    """Of a team's rules; None in a contract without counters."""

    @property
    def protocol_version(self) -> str:
        """The version of the orchestrator's own packets in this session."""
        return PROTOCOL_VERSION

    @property
    def last_generation(self) -> int:
        """The generation whose barrier opens the candidate pool."""
        return self.generation_limit + self.convergence_generations

    def encode(self) -> bytes:
        """Return the JSON that a log batch carries and table `sessions` stores."""
        return orjson.dumps(self, option=orjson.OPT_NON_STR_KEYS)


@dataclass(slots=True)
class OpenQuestion:
    """An ASK without an ANSWER, to people or to agents; its deadline is the session's deadline `ask:<packet_id>`."""

    asker: str
    may_answer: list[str]
    """Who was asked, roles resolved when the ASK was admitted."""
    role: str
    """Set when everybody of a role was asked."""
    payload_hash: str
    asked_at: datetime
    due_at: datetime
    returns: str = ""
    """The schema that answers a request to agents; empty = people are asked."""


@dataclass(slots=True)
class PendingWake:
    """A timer that an agent has set; its deadline is the session's deadline `wake:<packet_id>`."""

    agent: str
    key: str
    due_at: datetime
    is_absolute: bool
    """Set by `at`: a pause does not move it."""


@dataclass(slots=True)
class Work:
    """Where a session of the coordinator `task` stands."""

    contract: str
    deciders: list[str]
    """Agents whose DECISION DONE ends the work."""
    reviewers: list[str]
    """Agents who approve it; none of them decides."""
    approvals: int
    """How many of them must agree."""
    halts_on_failure: bool
    is_started: bool = False
    """The opener's task was admitted."""
    done: UUID | None = None
    """The DECISION DONE of this round."""
    done_by: str = ""
    approved_by: list[str] = field(default_factory=list)
    failed: str | None = None
    """Why the review of this round failed."""
    last_end: str = ""
    """The delivery that ended last, in words."""
    questions: dict[UUID, OpenQuestion] = field(default_factory=dict)
    """ASK -> what is waited for."""
    wakes: dict[UUID, PendingWake] = field(default_factory=dict)
    """The WAKE that set it -> a timer that has not gone off."""
    unsettled: dict[UUID, str] = field(default_factory=dict)
    """A delivery that failed and waits for somebody's word -> its recipient: it does not halt the session."""


@dataclass(slots=True)
class TaskDocument(SessionDocument):
    """The document of a session of the coordinator `task`."""

    work: Work = field(default_factory=lambda: Work("", [], [], 1, True))

    @property
    def protocol_version(self) -> str:
        return PROTOCOL_1_1


class _Kind(msgspec.Struct):
    work: msgspec.Raw = msgspec.Raw()


def checksum(text: str) -> int:
    """Return a 32-bit checksum of a text: enough to recognise it."""
    return crc32(text.encode())


_decoder = msgspec.json.Decoder(SessionDocument)
_task_decoder = msgspec.json.Decoder(TaskDocument)
_kind_decoder = msgspec.json.Decoder(_Kind)


def decode_document(data: bytes | str) -> SessionDocument:
    """Return the document in JSON bytes. Raises msgspec.ValidationError when the shape is different."""
    is_task = bool(bytes(_kind_decoder.decode(data).work))
    return _task_decoder.decode(data) if is_task else _decoder.decode(data)
