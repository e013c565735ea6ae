"""The typed payloads of the packet types (docs/specification/contract.md section 3)."""

from collections.abc import Mapping
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from apc_contracts.contract_model import (
    ArtifactHash,
    Change,
    Count,
    Fraction,
    Id,
    Model,
    Name,
    OpenMap,
    Ratio,
    SchemaId,
    Sha256,
    Time,
    Uuid,
    broken,
)
from apc_contracts.payloads.session_signals import SessionSpec, SessionState, TaskSessionSpec, WakeSpec
from apc_contracts.payloads.task_ir import FormulaBundle, IrHeader, IrObject, Normalization
from apc_contracts.vocabulary import (
    FIELDS_OF_SIGNAL,
    SIGNALS_OF_1_1,
    AckStatus,
    ArtifactKind,
    CommitmentLevel,
    Signal,
    TransferMode,
)

MAX_THRESHOLD_MULTIPLIER = 3
MAX_TOP_K = 10


class Payload(Model):
    """The base of the payloads."""


class TaskIrPayload(Payload):
    """A task, as machine-checkable objects."""

    ir_header: IrHeader
    objects: Annotated[tuple[IrObject, ...], Field(min_length=1)]
    normalization: Normalization | None = None
    formula_bundle: FormulaBundle | None = None


class ExpectedImpact(Model):
    """What an idea should change, each in -1..1."""

    quality_gain: Change
    cost_change: Change
    risk_change: Change


class FailureMode(Model):
    """A way in which an idea may fail, and its mitigation."""

    id: Name
    description: str
    mitigation: str


class Complexity(Model):
    """How an idea scales."""

    time_class: str | None = None
    space_class: str | None = None
    data_volume_class: Literal["XS", "S", "M", "L", "XL"] | None = None


class LanguageBinding(Model):
    """A language in which an idea can be implemented."""

    language: Name
    adapter_hint: str
    required_runtime: str | None = None


class IdeaPayload(Payload):
    """A proposed method."""

    method_id: Name
    intent: str
    assumptions: tuple[str, ...]
    required_capabilities: tuple[str, ...]
    expected_impact: ExpectedImpact
    failure_modes: tuple[FailureMode, ...]
    complexity: Complexity | None = None
    test_contract_refs: tuple[str, ...] | None = None
    language_bindings: tuple[LanguageBinding, ...] | None = None
    formula_bundle: FormulaBundle | None = None


class ClaimPayload(Payload):
    """A hypothesis with the confidence before and after it was tested."""

    claim_id: Name
    hypothesis_id: Name
    text: str
    confidence_pre: Fraction
    confidence_post: Fraction


class ArtifactPayload(Payload):
    """A reference to content by its SHA-256."""

    artifact_id: Name
    artifact_kind: ArtifactKind
    artifact_uri: Annotated[str, Field(min_length=1)]
    artifact_hash: ArtifactHash
    language: str | None = None
    adapter: str | None = None
    formula_bundle: FormulaBundle | None = None


# SIGNAL, HEARTBEAT; ASK and ANSWER of apc/1.1 say what a handler waits for (docs/how-to/approvals.md).

MAX_TEXT = 8_192
"""Characters of a question, and of the note of its answer."""


class OnTimeout(StrEnum):
    """What becomes of a question that nobody has answered in time."""

    DENY = "deny"
    RAISE = "raise"


class AnswerOutcome(StrEnum):
    """How a question ended."""

    APPROVED = "approved"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    ANSWERED = "answered"
    FAILED = "failed"


OF_THE_GATE = frozenset({AnswerOutcome.TIMED_OUT})
"""Outcomes that only the orchestrator sends."""
OF_AGENTS = frozenset({AnswerOutcome.ANSWERED, AnswerOutcome.FAILED})
"""Outcomes of a request; people approve or deny."""


class Question(Model):
    """What a handler asks people; it is due at `expected_response_by` of its SIGNAL. `content` is shown to them."""

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    content: OpenMap | None = None
    on_timeout: OnTimeout = OnTimeout.DENY


class AgentRequest(Model):
    """What a handler asks another agent: typed data for its handler, which answers with a result of `returns`.

    In JSON, `schema_id` is the field `schema`.
    """

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap
    returns: SchemaId


class Result(Model):
    """What work, or a request, came to: `content` fits the registered schema. In JSON `schema_id` is `schema`."""

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap


class AnswerSpec(Model):
    """The end of a question or request; the parent of its packet is the ASK. `seen` is the payload hash of the ASK.

    A request that was `answered` has a `result`; of one that `failed`, `note` says why.
    """

    outcome: AnswerOutcome
    note: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    seen: Sha256 | None = None
    result: Result | None = None

    @model_validator(mode="after")
    def _result_fits_outcome(self) -> Self:
        if (self.result is not None) != (self.outcome is AnswerOutcome.ANSWERED):
            raise broken("result", "result goes with answered, and with no other outcome")
        return self


TASK_TAG = "TASK"


def _session_kind(value: Any) -> str:
    is_mapping = isinstance(value, Mapping)
    if isinstance(value, SessionSpec) or (is_mapping and "swarms" in value):
        return Signal.START
    if isinstance(value, TaskSessionSpec) or (is_mapping and "contract" in value and "state" not in value):
        return TASK_TAG
    return Signal.SYNC


def _goes_with(session: Any) -> str:
    kind = _session_kind(session)
    return Signal.START if kind == TASK_TAG else kind


class SignalFields(Payload):
    """A control signal: START has a SessionSpec or TaskSessionSpec as `session`, SYNC a SessionState, others none."""

    signal: Signal
    reason: str | None = None
    expected_response_by: Time | None = None
    session: (
        Annotated[
            Annotated[SessionSpec, Tag(Signal.START)]
            | Annotated[TaskSessionSpec, Tag(TASK_TAG)]
            | Annotated[SessionState, Tag(Signal.SYNC)],
            Discriminator(_session_kind),
        ]
        | None
    ) = None

    @model_validator(mode="after")
    def _session_fits_signal(self) -> Self:
        if self.session is None or _goes_with(self.session) == self.signal:
            return self
        if self.signal is Signal.START:
            raise broken("session", "START carries a SessionSpec: give swarms, generation_limit and the deadlines")
        if self.signal is Signal.SYNC:
            raise broken("session", "SYNC carries a SessionState: give state, run_phase, round, generation, step, ...")
        raise broken("session", f"session goes only with START and SYNC: remove it from {self.signal}")


class SignalPayload(SignalFields):
    """A control signal of a session. `question` or `request` goes with ASK, `answer` with ANSWER, `wake` with WAKE."""

    question: Question | None = None
    request: AgentRequest | None = None
    answer: AnswerSpec | None = None
    wake: WakeSpec | None = None

    @model_validator(mode="after")
    def _fields_fit_signal(self) -> Self:
        carried = FIELDS_OF_SIGNAL.get(self.signal, ())
        given = [name for name in chain.from_iterable(FIELDS_OF_SIGNAL.values()) if getattr(self, name) is not None]
        for name in given:
            if name not in carried:
                signal = next(signal for signal, names in FIELDS_OF_SIGNAL.items() if name in names)
                raise broken(name, f"{name} goes with {signal}, and with no other signal")
        if carried and len(given) != 1:
            raise broken(carried[0], f"{self.signal} carries {' or '.join(carried)}: give one")
        if self.signal is Signal.ASK and self.expected_response_by is None:
            raise broken("expected_response_by", "ASK says until when an answer is waited for: give it")
        return self


class HeartbeatPayload(SignalFields):
    """A sign of life."""

    @model_validator(mode="after")
    def _is_no_question(self) -> Self:
        if self.signal in SIGNALS_OF_1_1:
            raise broken("signal", f"{self.signal} is no sign of life: send it as SIGNAL")
        return self


# What an EVAL measures by: thresholds of apc/1.0; in apc/1.1 open metrics, each with the limits that it must keep.
MAX_METRICS: Final = 256


class Thresholds(Model):
    """The sender's own thresholds. They never widen the promotion gate."""

    rtf: Fraction
    stability: Fraction
    audit: Fraction
    outcome: Fraction
    learnability: Fraction
    generalization_ratio: Ratio
    drift_risk: Fraction | None = None


class MetricLimit(Model):
    """The smallest and the largest value that a metric may have, both included; at least one of them."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min is None and self.max is None:
            raise broken("", "a limit has min, max or both: give one")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise broken("min", "min is above max: exchange them")
        return self

    def holds(self, value: float) -> bool:
        """Return whether a value is within the limit."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class Measurements(Model):
    """Metrics by name, and limits of some of them."""

    metrics: Annotated[Mapping[Name, float], Field(min_length=1, max_length=MAX_METRICS)]
    limits: Annotated[Mapping[Name, MetricLimit], Field(max_length=MAX_METRICS)] | None = None

    @model_validator(mode="after")
    def _limits_are_of_metrics(self) -> Self:
        for name in self.limits or ():
            if name not in self.metrics:
                raise broken(f"limits.{name}", f"{name} is not measured: give it in metrics, or leave its limit out")
        return self

    @property
    def missed(self) -> tuple[str, ...]:
        """The metrics that are outside of their limits."""
        limits = self.limits or {}
        return tuple(name for name, value in self.metrics.items() if name in limits and not limits[name].holds(value))


class MetricSet(Model):
    """The measured gates."""

    rtf: Fraction
    stability: Fraction
    audit: Fraction
    outcome: Fraction
    learnability: Fraction
    generalization_ratio: Ratio
    symbol_coverage: Fraction | None = None
    drift_risk: Fraction | None = None


class EvalPayload(Payload):
    """A measurement. In JSON, `passed` is the field `pass`; it is the sender's opinion, never the gate's."""

    metric_set: MetricSet
    thresholds: Thresholds
    passed: bool = Field(alias="pass")
    notes: tuple[str, ...] | None = None


class OpenEvalPayload(Measurements, Payload):
    """A measurement by open metrics instead of the `metric_set` of research (apc/1.1). `passed` as in EvalPayload."""

    passed: bool = Field(alias="pass")
    notes: tuple[str, ...] | None = None


class TransferPolicy(Model):
    """The sender's conditions of a transfer; the stricter of these and the contract's holds."""

    mode: TransferMode
    min_generation: Count | None = None
    threshold_multiplier: Annotated[float, Field(ge=1, le=MAX_THRESHOLD_MULTIPLIER)] | None = None
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None


class TransferPayload(Payload):
    """Protocol knowledge moving between swarms. `accepted` is ignored: the sender cannot know it."""

    protocol_id: Name
    from_swarm: Id
    to_swarm: Id
    sender_score: Fraction
    receiver_score: Fraction
    transfer_policy: TransferPolicy
    accepted: bool | None = None


class Candidate(Model):
    """One of the options of an arbitration."""

    candidate_id: Name
    packet_ref_ids: tuple[Uuid, ...]
    score_components: Mapping[str, float]
    total_score: Fraction
    risk_flags: tuple[str, ...] | None = None


class Veto(Model):
    """Who vetoed a winner, and why."""

    agent_id: Id
    reason: str


class ArbitrationPayload(Payload):
    """A comparison of candidates and its winner."""

    arbitration_id: Name
    candidates: Annotated[tuple[Candidate, ...], Field(min_length=2)]
    winner_candidate_id: Name
    scoring: Mapping[str, float]
    vetoes: tuple[Veto, ...] | None = None

    @model_validator(mode="after")
    def _winner_is_a_candidate(self) -> Self:
        seen: set[str] = set()
        for index, candidate in enumerate(self.candidates):
            if candidate.candidate_id in seen:
                raise broken(f"candidates[{index}].candidate_id", "candidate listed twice: give each its own id")
            seen.add(candidate.candidate_id)
        if self.winner_candidate_id not in seen:
            raise broken("winner_candidate_id", "the winner is no candidate: name one of candidates[].candidate_id")
        return self


class DecisionPayload(Payload):
    """A decision and what follows from it. `result` is of apc/1.1."""

    decision_id: Name
    recommendation: str
    priority_distribution: Mapping[str, Fraction]
    next_actions: tuple[str, ...]
    commitment_level: CommitmentLevel | None = None
    result: Result | None = None


class RetractionPayload(Payload):
    """Takes a packet back; nothing is ever changed in place."""

    target_packet_id: Uuid
    reason: str
    replacement_packet_id: Uuid | None = None


class AckPayload(Payload):
    """The acceptance of a packet."""

    acked_packet_id: Uuid
    ack_status: Literal[AckStatus.ACCEPTED, AckStatus.DEFERRED]
    reason: str | None = None


class NackPayload(Payload):
    """The rejection of a packet. The gate's own reasons have the form `CODE at PATH: message`."""

    acked_packet_id: Uuid
    ack_status: Literal[AckStatus.REJECTED, AckStatus.DEFERRED]
    reason: str | None = None


class ErrorPayload(Payload):
    """A failure at the sender."""

    error_code: Name
    message: str
    retryable: bool
    details: OpenMap | None = None


class MessagePayload(Payload):
    """Typed data of apc/1.1: `content` fits the registered schema. In JSON, `schema_id` is the field `schema`."""

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap
    text: str | None = None
    """The same in words, for people and language models."""


def typed_part(payload: Payload) -> tuple[MessagePayload | Result | AgentRequest | None, str]:
    """Return the data of a registered schema that a payload carries, and its path in the packet."""
    if isinstance(payload, MessagePayload):
        return payload, "payload"
    if isinstance(payload, DecisionPayload):
        return payload.result, "payload.result"
    if not isinstance(payload, SignalPayload) or payload.signal not in SIGNALS_OF_1_1:
        return None, "payload"
    if payload.answer is not None:
        return payload.answer.result, "payload.answer.result"
    return payload.request, "payload.request"
