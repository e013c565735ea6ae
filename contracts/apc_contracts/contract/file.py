"""A contract file: its shape, and what its parts must mean together.

Sections follow docs/specification/contract.md sections 4 to 12; `data/contract.schema.json` is exported from the
models. Sequences are tuples and models are frozen: a loaded contract never changes. The checks name the place of the
first gap.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints

from apc_contracts.contract.coordinators import STOP, TERMS, Coordinator
from apc_contracts.contract.expressions import FieldType
from apc_contracts.contract_model import SchemaId
from apc_contracts.errors import ContractInvalid
from apc_contracts.vocabulary import (
    CONTROL_TYPES,
    PROTOCOL_1_1,
    PROTOCOL_VERSIONS,
    ArtifactKind,
    CommitmentLevel,
    PacketType,
    Right,
    RunPhase,
    Signal,
)

Word = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Positive = Annotated[int, Field(ge=1)]
Truth = Annotated[bool, Strict()]


class Section(BaseModel):
    """A part of the file: frozen, unknown keys refused, numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


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
    """What a verification checks, and what a finding does (docs/research/governance.md).

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


# Rules that a team writes (docs/reference/rules.md).

RuleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
FieldPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,7}$", max_length=128)]
RuleText = Annotated[str, StringConstraints(min_length=1, max_length=300)]
RuleMode = Literal["enforce", "warn", "observe"]
KeptFields = Annotated[tuple[FieldPath, ...], Field(max_length=4)]
ContentPath = Annotated[str, StringConstraints(pattern=r"^content\.[A-Za-z_]")]
CounterKey = Annotated[str, StringConstraints(pattern=r"^(session|sender|recipient|content\.[A-Za-z_].*)$")]
"""What a counter counts by: the session, the sender, each recipient, or a field of the content."""
MAX_WINDOW_MS = 31 * MILLISECONDS_OF_A_DAY


class Subject(Section):
    """Packets that a rule or counter is for: those of a schema, of a packet type, or of both."""

    schema_: SchemaId | None = Field(default=None, alias="schema")
    type: PacketType | None = None


class RuleDeclaration(Section):
    """A rule: what is for `for_`, and meets `when`, must meet `require`."""

    name: RuleName
    for_: Annotated[tuple[Subject, ...], Field(alias="for", min_length=1, max_length=32)]
    when: GuardText | None = None
    require: GuardText
    say: RuleText | None = None
    remedy: RuleText | None = None
    mode: RuleMode = "enforce"
    reuse: Truth = False
    """Whether the approvals that it reads stay valid for the next packet with the same content."""


class CounterDeclaration(Section):
    """Counts accepted packets of a session, or adds one of their amounts, by a key and within a time."""

    for_: Annotated[tuple[Subject, ...], Field(alias="for", min_length=1, max_length=32)]
    when: GuardText | None = None
    by: CounterKey = "session"
    add: ContentPath | None = None
    within_ms: Annotated[int, Field(strict=True, ge=60, le=MAX_WINDOW_MS)] | None = None


class ChainLink(Section):
    """A file that the rules were made from, and the SHA-256 of its bytes."""

    name: Word
    hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class TeamRules(Section):
    """What overlays add to a contract; `types` are those of the content fields that the rules read."""

    chain: Annotated[tuple[ChainLink, ...], Field(min_length=2, max_length=4)]
    only: tuple[SchemaId, ...] | None = None
    keep: dict[SchemaId, KeptFields] = Field(default_factory=dict)
    counters: Annotated[dict[Name, CounterDeclaration], Field(max_length=16)] = Field(default_factory=dict)
    roles: tuple[Word, ...] | None = None
    zone: Word = "UTC"
    rules: Annotated[tuple[RuleDeclaration, ...], Field(max_length=64)] = ()
    types: dict[SchemaId, dict[FieldPath, FieldType]] = Field(default_factory=dict)


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
    team: TeamRules | None = None
    """What overlays have added; their files are written out into this one."""


def contract_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of contract files; a test keeps `data/contract.schema.json` equal to it."""
    schema = ContractFile.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# Consistency checks across the parts of a contract file; every gap is reported with its place.

LIFECYCLE_MACHINE = "packet_lifecycle"
MACHINE_NAMES = (LIFECYCLE_MACHINE, "inter_agent_coordination", "intra_agent_coordination")
SESSION_MACHINE = "inter_agent_coordination"
CLOSED = "CLOSED"

REFUSAL_ORDER = tuple(
    """TOO_LARGE TOO_DEEP MALFORMED TOO_DEEP SCHEMA_INVALID SENDER_MISMATCH UNKNOWN_SENDER BAD_SIGNATURE
    DUPLICATE_CONFLICT EXPIRED CLOCK_SKEW UNKNOWN_SESSION SESSION_TERMINAL SESSION_PAUSED NOT_AUTHORIZED
    UNROUTABLE PHASE_MISMATCH GENERATION_MISMATCH PHASE_FORBIDS_TYPE LINEAGE_REQUIRED PROOF_REQUIRED
    TRANSFER_WINDOW_CLOSED THROTTLE_MODE THROTTLE_CROSS_USE_CASE THROTTLE_SCORE THROTTLE_TOP_K
    PROTOCOL_DECAYED NOT_RETRACTABLE
    DRIFT_CHECK_FAILED LOOP_DETECTED QUOTA_EXCEEDED OVERLOADED BUDGET_EXHAUSTED""".split()
)
"""The order of the rules in `admission`: a file that states another order is refused."""
_AFTER = {"UNKNOWN_SESSION": ("UNKNOWN_CONTRACT",), "PHASE_FORBIDS_TYPE": ("CONTENT_INVALID",)}
REFUSAL_ORDER_1_1 = tuple(name for code in REFUSAL_ORDER for name in (code, *_AFTER.get(code, ())))
"""The order of a contract that speaks apc/1.1."""
TEAM_CODES = ("EVIDENCE_UNKNOWN", "RULE_FAILED")
"""They follow DRIFT_CHECK_FAILED in a contract that an overlay has made."""


def with_team_codes(order: tuple[str, ...]) -> tuple[str, ...]:
    """Return the order of a contract with rules of a team."""
    behind = order.index("DRIFT_CHECK_FAILED") + 1
    return (*order[:behind], *TEAM_CODES, *order[behind:])


KNOWN_FACTS: Mapping[str, tuple[FactType, frozenset[FactScope]]] = {
    **dict.fromkeys(("generation", "session_limit", "candidates"), ("float", frozenset[FactScope]({"machine"}))),
    **dict.fromkeys(("round", "max_rounds", "approvals"), ("float", frozenset[FactScope]({"machine"}))),
    **dict.fromkeys(("vetoed", "veto_overridden"), ("bool", frozenset[FactScope]({"machine"}))),
    **dict.fromkeys(
        "rtf stability audit outcome learnability generalization_ratio symbol_coverage drift_risk".split(),
        ("float", frozenset[FactScope]({"machine", "promotion"})),
    ),
    **dict.fromkeys(("sender_score", "receiver_score", "top_k"), ("float", frozenset[FactScope]({"transfer"}))),
    "mode": ("string", frozenset({"transfer"})),
    "is_cross_use_case": ("bool", frozenset({"transfer"})),
    "packet_type": ("string", frozenset({"drift"})),
    "protocol_share": ("float", frozenset({"drift"})),
    **dict.fromkeys(
        """phase_allows_type has_evidence has_falsifiers has_artifact_hash protocol_is_deployed
        contract_is_deployed task_is_known root_is_known parent_is_known recipients_are_registered
        brings_new_symbols""".split(),
        ("bool", frozenset[FactScope]({"drift"})),
    ),
}
"""The facts that this version computes, with type and scope; a file may declare no other."""
_ALL_FACTS = "docs/reference/guards.md lists all facts"
_OF_TASK = frozenset({"round", "max_rounds", "approvals"})
"""The facts that the packaged contract `task` declares and `apc-1.0` does not."""


def check_contract(file: ContractFile) -> None:
    """Check the whole contract file, except for its guards.

    Raises:
        ContractInvalid: the first gap, with its place.
    """
    _check_facts(file)
    _check_machines(file)
    _check_coordinator(file)
    _check_phases(file)
    _check_windows(file)
    _check_names(file)
    _check_loops(file)
    _check_refusals(file)
    _check_ranks(file)


def check_deployable(file: ContractFile) -> None:
    """Check what a deployment's own file must also hold; a contract that a log stores is judged without it.

    Raises:
        ContractInvalid: a state that nobody can leave, or an unknown metric, with its place.
    """
    for name, machine in file.machines.items():
        left = {state for edge in machine.edges for state in edge.sources if edge.sources != "*"}
        for index, state in enumerate(machine.states):
            if state not in left and state not in machine.terminal:
                message = f"nobody can leave {state}: give it an edge, or name it in terminal"
                raise ContractInvalid(f"machines.{name}.states[{index}]", message)
    metrics = fact_types(file, "promotion")
    for index, criterion in enumerate(file.promotion_gate):
        if criterion.metric not in metrics:
            message = f"unknown metric {criterion.metric!r}; known: {', '.join(sorted(metrics))}"
            raise ContractInvalid(f"promotion_gate[{index}].metric", message)


def fact_types(file: ContractFile, scope: FactScope) -> dict[str, FactType]:
    """Return the facts that a guard of this scope may name, with their types."""
    return {fact.name: fact.type for fact in file.facts if scope in fact.scopes}


def how_to_declare(name: str) -> str:
    """Return what to do about a guard that names a fact which the file does not declare for it, as one sentence."""
    if name not in KNOWN_FACTS:
        return _ALL_FACTS
    scopes = " and ".join(sorted(KNOWN_FACTS[name][1]))
    base = "task" if name in _OF_TASK else "apc-1.0"
    return (
        f"It is a fact of {scopes} guards: for one of those copy its entry into `facts` from the file that "
        f"`apc contract new NAME --from {base}` writes"
    )


def _check_facts(file: ContractFile) -> None:
    _refuse_twice((fact.name for fact in file.facts), "facts", "fact")
    for index, fact in enumerate(file.facts):
        place = f"facts[{index}]"
        if fact.name not in KNOWN_FACTS:
            raise ContractInvalid(place, f"the fact {fact.name!r} is not computed by this version. {_ALL_FACTS}")
        known_type, known_scopes = KNOWN_FACTS[fact.name]
        if fact.type != known_type:
            raise ContractInvalid(f"{place}.type", f"the fact {fact.name!r} is a {known_type}")
        for scope in fact.scopes:
            if scope not in known_scopes:
                raise ContractInvalid(f"{place}.scopes", f"the fact {fact.name!r} is no fact of {scope} guards")
        if "machine" in fact.scopes and fact.name not in TERMS[file.coordinator].facts:
            message = f"the coordinator {file.coordinator} does not compute the fact {fact.name!r}"
            raise ContractInvalid(f"{place}.scopes", message)


def _check_machines(file: ContractFile) -> None:
    for name in MACHINE_NAMES:
        if name not in file.machines:
            raise ContractInvalid("machines", f"the machine {name!r} is missing")
    for name, machine in file.machines.items():
        _check_states(machine, f"machines.{name}")
        if name == SESSION_MACHINE and CLOSED in machine.states and all(edge.to != CLOSED for edge in machine.edges):
            raise ContractInvalid(f"machines.{name}.edges", f"the contract has no exit: no edge leads to {CLOSED}")
        _check_reachable(machine, f"machines.{name}")


def _check_states(machine: MachineDeclaration, place: str) -> None:
    _refuse_twice(machine.states, f"{place}.states", "state")
    _refuse_unknown([machine.initial], machine.states, f"{place}.initial")
    _refuse_unknown(machine.terminal, machine.states, f"{place}.terminal")
    seen: dict[tuple[str, str], int] = {}
    for index, edge in enumerate(machine.edges):
        spot = f"{place}.edges[{index}]"
        if edge.sources != "*":
            _refuse_unknown(edge.sources, machine.states, f"{spot}.from")
        _refuse_unknown([edge.to], machine.states, f"{spot}.to")
        if edge.guard is not None and edge.gate is not None:
            raise ContractInvalid(spot, "an edge has a guard or a gate, not both")
        for source in edge_sources(machine, index):
            if edge.sources != "*" and source in machine.terminal:
                raise ContractInvalid(f"{spot}.from", f"{source} is terminal: nothing leaves it")
            if (source, edge.event) in seen:
                other = seen[source, edge.event]
                raise ContractInvalid(spot, f"({source}, {edge.event}) has an edge already: edges[{other}]")
            seen[source, edge.event] = index


def edge_sources(machine: MachineDeclaration, index: int) -> tuple[str, ...]:
    """Return the states that an edge leaves, `*` spelled out."""
    edge = machine.edges[index]
    if edge.sources != "*":
        return edge.sources
    return tuple(state for state in machine.states if edge.from_terminal or state not in machine.terminal)


def _check_reachable(machine: MachineDeclaration, place: str) -> None:
    reached = _reached(machine, machine.initial)
    for index, state in enumerate(machine.states):
        if state not in reached:
            raise ContractInvalid(f"{place}.states[{index}]", f"{state} is not reachable from {machine.initial}")


def _reached(machine: MachineDeclaration, start: str, *, without: str = "") -> set[str]:
    """Return the states that edges lead to from `start`, itself included; edges of the event `without` do not count."""
    reached, frontier = {start}, [start]
    while frontier:
        for target in _targets(machine, frontier.pop(), without):
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    return reached


def _targets(machine: MachineDeclaration, state: str, without: str) -> Iterator[str]:
    for index, edge in enumerate(machine.edges):
        if edge.event != without and state in edge_sources(machine, index):
            yield edge.to


def _check_coordinator(file: ContractFile) -> None:
    """Check that the session's machine has only what its coordinator knows, and that every state leads to CLOSED."""
    terms, machine = TERMS[file.coordinator], file.machines[SESSION_MACHINE]
    place = f"machines.{SESSION_MACHINE}"
    for index, state in enumerate(machine.states):
        if state not in terms.states:
            message = f"the coordinator {file.coordinator} has no state {state}; it has: {', '.join(terms.states)}"
            raise ContractInvalid(f"{place}.states[{index}]", message)
    for index, edge in enumerate(machine.edges):
        if edge.event not in terms.events:
            known = ", ".join(sorted(terms.events))
            message = f"the coordinator {file.coordinator} raises no event {edge.event}; it raises: {known}"
            raise ContractInvalid(f"{place}.edges[{index}].event", message)
    for index, state in enumerate(machine.states):
        if state not in machine.terminal and CLOSED not in _reached(machine, state, without=STOP):
            raise ContractInvalid(f"{place}.states[{index}]", f"from {state} no edges but {STOP} lead to {CLOSED}")


def _check_phases(file: ContractFile) -> None:
    session_states = file.machines[SESSION_MACHINE]
    _refuse_unknown(file.phase_of_state, session_states.states, "phase_of_state")
    for state in session_states.states:
        # A terminal state without a phase (HALTED) keeps the one it came from.
        if state not in file.phase_of_state and state not in session_states.terminal:
            raise ContractInvalid("phase_of_state", f"the state {state} has no run_phase")
    for phase in RunPhase:
        if phase not in file.phases:
            raise ContractInvalid("phases", f"the run_phase {phase} has no row")
    for phase, row in file.phases.items():
        place = f"phases.{phase}"
        _refuse_twice(row.packet_types, f"{place}.packet_types", "packet type")
        if row.transfer is not None and PacketType.TRANSFER not in row.packet_types:
            raise ContractInvalid(f"{place}.transfer", "the phase does not allow TRANSFER: no guard for it")
    if frozenset(file.control_types) != CONTROL_TYPES:
        named = ", ".join(sorted(CONTROL_TYPES))
        raise ContractInvalid("control_types", f"apc/1.0 has exactly these control types: {named}")


def _check_windows(file: ContractFile) -> None:
    if not (TERMS[file.coordinator].has_generations or file.transfer_windows):
        return
    expected: int | None = 0
    for index, window in enumerate(file.transfer_windows):
        place = f"transfer_windows[{index}]"
        if expected is None:
            raise ContractInvalid(place, "a window after the one without last_generation")
        if window.first_generation != expected:
            raise ContractInvalid(f"{place}.first_generation", f"windows follow each other: {expected} here")
        if window.last_generation is not None and window.last_generation < window.first_generation:
            raise ContractInvalid(f"{place}.last_generation", "the window ends before it begins")
        expected = None if window.last_generation is None else window.last_generation + 1
    if expected is not None:
        raise ContractInvalid("transfer_windows", f"no window holds generation {expected} and later ones")


def _check_names(file: ContractFile) -> None:
    spoken = {f"speaks[{at}]": version for at, version in enumerate(file.speaks)}
    for place, version in {"protocol_version": file.protocol_version, **spoken}.items():
        if version not in PROTOCOL_VERSIONS:
            raise ContractInvalid(place, f"this version speaks {' and '.join(PROTOCOL_VERSIONS)}")
    if file.protocol_version not in file.speaks:
        raise ContractInvalid("speaks", f"it names the contract's own protocol_version, {file.protocol_version}")
    if TERMS[file.coordinator].has_generations and not file.promotion_gate:
        raise ContractInvalid("promotion_gate", f"the coordinator {file.coordinator} needs at least one criterion")
    _refuse_twice((check.name for check in file.drift_checks), "drift_checks", "check")
    _refuse_twice((criterion.metric for criterion in file.promotion_gate), "promotion_gate", "metric")
    events = {edge.event for edge in file.machines[SESSION_MACHINE].edges}
    for raiser, raised in file.raised_by.items():
        _refuse_unknown(raised, events, f"raised_by.{raiser}")


def _check_loops(file: ContractFile) -> None:
    for name, threshold in (("same_content", file.loops.same_content), ("idle_turns", file.loops.idle_turns)):
        if threshold.refuse_after < threshold.query_after:
            raise ContractInvalid(f"loops.{name}.refuse_after", "the senders are asked before they are refused")
    if file.loops.contents_kept < file.loops.same_content.refuse_after:
        raise ContractInvalid("loops.contents_kept", "it must hold as many contents as one may be repeated")


def _check_refusals(file: ContractFile) -> None:
    order = refusal_order(file)
    if file.refusals.order != order:
        raise ContractInvalid("refusals.order", f"the rules stand in this order: {' '.join(order)}")
    _refuse_unknown([file.refusals.last_without_id], order, "refusals.last_without_id")
    _refuse_unknown(file.refusals.deferred, order, "refusals.deferred")
    _refuse_unknown(file.effectiveness.counted_refusals, order, "effectiveness.counted_refusals")


def refusal_order(file: ContractFile) -> tuple[str, ...]:
    """Return the order in which a contract must state its refusals."""
    order = REFUSAL_ORDER if PROTOCOL_1_1 not in file.speaks else REFUSAL_ORDER_1_1
    return order if file.team is None else with_team_codes(order)


def _refuse_unknown(names: Iterable[str], known: Iterable[str], place: str) -> None:
    known = tuple(known)
    for name in names:
        if name not in known:
            raise ContractInvalid(place, f"unknown {name!r}; known: {', '.join(sorted(known))}")


def _refuse_twice(names: Iterable[str], place: str, what: str) -> None:
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            raise ContractInvalid(f"{place}[{index}]", f"the {what} {name!r} stands there twice")
        seen.add(name)


def _check_ranks(file: ContractFile) -> None:
    for name, ranks in (("authority", file.superseding.authority), ("commitment", file.superseding.commitment)):
        if len(set(ranks)) < len(ranks):
            raise ContractInvalid(f"superseding.{name}", "a rank stands there twice: list each once, from low to high")
