"""The shape of a contract file; `data/contract.schema.json` is exported from it.

Sections follow docs/specification/contract.md sections 4 to 12. Only shapes are checked here; `contract_checks` checks
what the parts mean together. Sequences are tuples and models are frozen: a loaded contract never changes.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from apc_contracts.contract.coordinators import Coordinator
from apc_contracts.identity.registry import Right
from apc_contracts.vocabulary import ArtifactKind, CommitmentLevel, PacketType, RunPhase, Signal

# The base model of every part of a contract file.

Word = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the file: frozen, unknown keys refused, numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# The bounds of a contract file: packets, quotas, refused input, usage.


class Quota(Section):
    """A token bucket: tokens per second that flow back, and how many it holds."""

    packets_per_second: Annotated[float, Field(ge=0.001, le=100_000.0)]
    burst: Annotated[int, Field(ge=1, le=1_000_000)]


class QuotaRules(Quota):
    """The quotas of senders; `roles` and `agents` override the default, the agent's own first."""

    roles: dict[Word, Quota]
    agents: dict[Word, Quota]


class RefusedInput(Section):
    """How much refused input the log stores.

    Small bodies are kept whole, larger ones by their beginning, within two token buckets per broker user: messages and
    bytes.
    """

    whole_bytes: Positive = 64 * 1024
    head_bytes: Positive = 4 * 1024
    messages_per_second: Annotated[float, Field(ge=0.001, le=100_000.0)] = 1000.0
    messages_burst: Positive = 100_000
    bytes_per_second: Annotated[float, Field(ge=1.0, le=1e9)] = 1024.0 * 1024.0
    bytes_burst: Positive = 64 * 1024 * 1024


class UsageCaps(Section):
    """How much one delivery's usage report can draw.

    At most these amounts, never more than was reserved for its task, and from a budget without reserved parts at most
    this share.
    """

    tokens: Positive
    cost: Annotated[float, Field(gt=0.0)]
    share: Annotated[float, Field(gt=0.0, le=1.0)]


class Limits(Section):
    """Bounds of packets and of the gate; bytes, levels, nodes, milliseconds, packets, deliveries.

    `pending_acks` counts the ACKs that one session waits for, `task_budgets` the tasks in its tree budget: they are
    part of its document, which every log batch carries. `swarms` bounds a SessionSpec: SYNC has a score for each.
    Without `quota` senders have no quota. `wakes` bounds the pending timers of one session, for the same reason.

    `list_items` bounds each list of names in a packet, `parents` the parent protocols of one. The next three bound what
    the gate remembers of one session: `session_items` its admitted packets, with their recipients and the names that
    they refer to; `refused_items` those of refused packets, beyond which a refused packet takes no id; `open_bytes` the
    bodies of unfinished packets.
    """

    packet_bytes: Positive
    nesting_levels: Positive
    nodes: Positive
    clock_skew_ms: Annotated[int, Field(ge=0)]
    held_packets: Annotated[int, Field(ge=0)]
    outstanding_deliveries: Positive
    pending_acks: Positive
    task_budgets: Positive
    swarms: Positive
    retry_after_ms: Positive
    quota: QuotaRules | None = None
    list_items: Positive = 1000
    parents: Positive = 64
    session_items: Positive = 300_000
    refused_items: Positive = 30_000
    open_bytes: Positive = 64 * 1024 * 1024
    wakes: Positive = 256
    refused: RefusedInput = RefusedInput()
    usage: UsageCaps | None = None


Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
Comment = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
GuardText = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
MILLISECONDS_OF_A_DAY = 86_400_000
MILLISECONDS_OF_A_CENTURY = 3_155_760_000_000
RetryLimit = Annotated[int, Field(ge=0, le=10)]

FactType = Literal["float", "bool", "string"]
FactScope = Literal["machine", "promotion", "transfer", "drift"]
Authority = Literal["member", "deciding", "orchestrator"]
Mode = Literal["enforce", "warn", "off"]
ThrottleCode = Literal["THROTTLE_MODE", "THROTTLE_CROSS_USE_CASE", "THROTTLE_SCORE", "THROTTLE_TOP_K"]


class FactDeclaration(Section):
    """A named fact that guards may read: where it may be used and what is needed to compute it."""

    name: Name
    type: FactType
    scopes: Annotated[tuple[FactScope, ...], Field(min_length=1)]
    needs: Literal["packet", "session", "registry"]
    meaning: Word | Annotated[str, StringConstraints(min_length=1, max_length=200)]


class EdgeDeclaration(Section):
    """Transitions of one event: `from` lists states, or is "*" for every non-terminal one.

    `from_terminal` lets a "*" edge leave terminal states too. `gate` stands for the whole promotion gate.
    """

    sources: Annotated[tuple[Word, ...], Field(min_length=1)] | Literal["*"] = Field(alias="from")
    event: Name
    to: Word
    guard: GuardText | None = None
    gate: Literal["promotion"] | None = None
    from_terminal: bool = False


class MachineDeclaration(Section):
    """A state machine as data."""

    states: Annotated[tuple[Word, ...], Field(min_length=1)]
    initial: Word
    terminal: tuple[Word, ...]
    edges: tuple[EdgeDeclaration, ...]


class TransferGuard(Section):
    """What a phase requires of a TRANSFER, and the text of the refusal."""

    guard: GuardText
    code: ThrottleCode
    path: Word


class PhaseDeclaration(Section):
    """One row of the phase table (docs/specification/contract.md section 4).

    Control types are legal in every phase and are listed separately.
    """

    packet_types: tuple[PacketType, ...]
    transfer: TransferGuard | None = None


class OrchestratorExemption(Section):
    """What the orchestrator may send in every phase."""

    packet_types: tuple[PacketType, ...]
    artifact_kinds: tuple[ArtifactKind, ...]


class TransferWindow(Section):
    """What a range of generations allows (docs/specification/contract.md section 5).

    Without `last_generation` the window has no end.
    """

    name: Name
    first_generation: Annotated[int, Field(ge=0)]
    last_generation: Annotated[int, Field(ge=0)] | None = None
    is_open: bool
    score_multiplier: Annotated[float, Field(ge=1.0, le=3.0)] | None = None
    top_k_limit: Annotated[int, Field(ge=1, le=10)] | None = None
    allows_cross_use_case: bool


class Selection(Section):
    """Weights of the selection score and of verified scores (docs/specification/contract.md section 5)."""

    confidence_weight: Share
    cross_use_case_bonus: Share
    total_score_divisor: Annotated[float, Field(gt=0.0)]
    verified_score_epsilon: Annotated[float, Field(gt=0.0, lt=1.0)]
    no_transfer_candidate: Word


class Effectiveness(Section):
    """Weights and limits of protocol effectiveness and decay (docs/specification/contract.md section 6).

    A refused TRANSFER counts as a transfer when its code is one of `counted_refusals`. In each half-life the evidence
    behind a block loses half of its weight.
    """

    acceptance_weight: Share
    outcome_weight: Share
    drift_weight: Share
    minimum_transfers: Positive
    minimum_effectiveness: Share
    maximum_drift_risk: Share
    counted_refusals: tuple[Word, ...]
    half_life_ms: Annotated[int, Field(ge=1, le=MILLISECONDS_OF_A_CENTURY)]


class PromotionCriterion(Section):
    """One condition of the promotion gate; `metric` names it when it fails."""

    metric: Name
    guard: GuardText


class DriftCheck(Section):
    """One anti-drift check (docs/specification/contract.md section 7)."""

    name: Name
    mode: Mode
    guard: GuardText
    path: Word


class Required(Section):
    """Packet types that must carry a lineage, a proof bundle, a signature."""

    lineage: tuple[PacketType, ...]
    proof_bundle: tuple[PacketType, ...]
    signature: tuple[PacketType, ...]


class Rights(Section):
    """The right that each act needs (docs/specification/contract.md section 10, "Who may do what")."""

    signals: dict[Signal, Right]
    moves_session: Right
    promotes: Right
    needs_no_membership: tuple[Right, ...]


class RetryBackoff(Section):
    """How long an attempt waits when its handler named no delay.

    The delay is `first_ms` x `factor` ^ (earlier attempts - 1), at most `longest_ms`, less a random share of up to
    `jitter`, which differs for each delivery and attempt.
    """

    first_ms: Annotated[int, Field(ge=1, le=MILLISECONDS_OF_A_DAY)]
    factor: Annotated[float, Field(ge=1.0, le=10.0)]
    longest_ms: Annotated[int, Field(ge=1, le=MILLISECONDS_OF_A_DAY)]
    jitter: Share


class SessionRules(Section):
    """Defaults and limits of a session (docs/specification/contract.md section 10).

    The limits count barriers and deadlines. `emission_ttl_ms` is the time to live of the orchestrator's own packets.
    `ack_timeout_ms` and `ack_retry_limit` apply to a packet that requires an ACK without naming them;
    `delivery_retry_limit` bounds the `retry` receipts of one that names no retry_limit, and `retry_backoff` spaces
    those that name no delay: without it they are due at once.
    """

    max_rounds: Positive
    veto_window_ms: Annotated[int, Field(ge=0)]
    emission_ttl_ms: Annotated[int, Field(ge=1, le=86_400_000)]
    brief_overlap_limit: Share
    missed_barriers_limit: Positive
    missed_deadlines_limit: Positive
    ack_timeout_ms: Annotated[int, Field(ge=1, le=3_600_000)]
    ack_retry_limit: RetryLimit
    delivery_retry_limit: RetryLimit
    recorded_after_end: tuple[PacketType, ...]
    timer_kinds: tuple[Name, ...]
    retry_backoff: RetryBackoff | None = None


class LoopThreshold(Section):
    """Above `query_after` the senders are queried, above `refuse_after` they are refused (LOOP_DETECTED)."""

    query_after: Positive
    refuse_after: Positive


class Loops(Section):
    """The loop guard's thresholds: packets of the same content, and idle turns in one chain.

    `same_content` counts packets of one sender, payload, recipients and generation; `idle_turns` how often senders of a
    chain spoke again with no new symbolic key and no new evidence_ref.
    """

    same_content: LoopThreshold
    idle_turns: LoopThreshold
    contents_kept: Positive
    evidence_kept: Positive
    queries_per_generation: Positive


class SupersedingRules(Section):
    """What waits at APPLIED until a packet of no lower rank on the same subject supersedes it.

    Source: docs/specification/contract.md sections 7 and 8. Rank is compared by authority first, then by commitment
    level, both from low to high; then the later one is higher. DECISIONs on one parent of the types `same_parent` are
    about the same subject.
    """

    types: tuple[Literal[PacketType.ARBITRATION, PacketType.DECISION], ...]
    authority: Annotated[tuple[Authority, ...], Field(min_length=3, max_length=3)]
    commitment: Annotated[tuple[CommitmentLevel, ...], Field(min_length=4, max_length=4)]
    same_parent: tuple[PacketType, ...]


class RetractionRules(Section):
    """How a retraction spreads.

    Packets of `rests_on_nothing` are no ground and have none: they answer or retract. `named_packets` is the largest
    number of stale packets that one SIGNAL QUERY to their owner names.
    """

    rests_on_nothing: tuple[PacketType, ...]
    named_packets: Annotated[int, Field(ge=1, le=2000)]


class VerificationRules(Section):
    """What a verification checks, and what a finding does (docs/explanation/governance.md).

    `enforce` fails the packet, `warn` is recorded with the pass, `off` is not checked.
    """

    artifact_bytes: Mode
    falsifiers: Mode
    evidence_packets: Mode
    evidence_artifacts: Mode
    endorsements: Mode


class Refusals(Section):
    """The refusal order, and how refusals are answered (docs/specification/contract.md section 12)."""

    order: Annotated[tuple[Word, ...], Field(min_length=1)]
    last_without_id: Word
    deferred: tuple[Word, ...]
    never_answered: tuple[PacketType, ...]


class ContractFile(Section):
    """A whole contract file."""

    schema_: str | None = Field(default=None, alias="$schema")
    comments: dict[Comment, Comment] = Field(default_factory=dict)
    """Notes for people, by place; nothing reads them."""
    name: Word
    protocol_version: Word
    coordinator: Coordinator = Coordinator.RESEARCH
    speaks: Annotated[tuple[Word, ...], Field(min_length=1)] = ("apc/1.0",)
    """The protocol versions whose packets its sessions admit."""
    facts: tuple[FactDeclaration, ...]
    machines: dict[Name, MachineDeclaration]
    phase_of_state: dict[Word, RunPhase]
    raised_by: dict[PacketType | Literal["receipts"], tuple[Name, ...]]
    control_types: tuple[PacketType, ...]
    phases: dict[RunPhase, PhaseDeclaration]
    orchestrator_in_every_phase: OrchestratorExemption
    barrier_phases: tuple[RunPhase, ...]
    transfer_windows: tuple[TransferWindow, ...]
    selection: Selection
    effectiveness: Effectiveness
    promotion_gate: tuple[PromotionCriterion, ...]
    drift_checks: tuple[DriftCheck, ...]
    required: Required
    rights: Rights
    session: SessionRules
    loops: Loops
    limits: Limits
    verification: VerificationRules
    retraction: RetractionRules
    superseding: SupersedingRules
    refusals: Refusals


def contract_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of contract files; a test keeps `data/contract.schema.json` equal to it."""
    schema = ContractFile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
