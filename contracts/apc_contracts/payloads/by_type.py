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
    """A task, as machine-checkable objects.

    Attributes:
        ir_header: what task it is.
        objects: claims, falsifiers, decisions, constraints and evidence, at least one.
        normalization: how the sender normalised it.
        formula_bundle: formulas beside it.
    """

    ir_header: IrHeader
    objects: Annotated[tuple[IrObject, ...], Field(min_length=1)]
    normalization: Normalization | None = None
    formula_bundle: FormulaBundle | None = None


class ExpectedImpact(Model):
    """What an idea should change, each in -1..1.

    Attributes:
        quality_gain: -1..1, above 0 is better.
        cost_change: -1..1, above 0 is dearer.
        risk_change: -1..1, above 0 is riskier.
    """

    quality_gain: Change
    cost_change: Change
    risk_change: Change


class FailureMode(Model):
    """A way in which an idea may fail, and its mitigation.

    Attributes:
        id: its name in the idea.
        description: what goes wrong.
        mitigation: what is done against it.
    """

    id: Name
    description: str
    mitigation: str


class Complexity(Model):
    """How an idea scales.

    Attributes:
        time_class: such as `O(n log n)`.
        space_class: such as `O(n)`.
        data_volume_class: how much data it is meant for.
    """

    time_class: str | None = None
    space_class: str | None = None
    data_volume_class: Literal["XS", "S", "M", "L", "XL"] | None = None


class LanguageBinding(Model):
    """A language in which an idea can be implemented.

    Attributes:
        language: such as `python`.
        adapter_hint: what calls the implementation.
        required_runtime: such as `3.12`.
    """

    language: Name
    adapter_hint: str
    required_runtime: str | None = None


class IdeaPayload(Payload):
    """A proposed method.

    Attributes:
        method_id: the name of the method.
        intent: what it is to achieve, in words.
        assumptions: what has to hold for it to work.
        required_capabilities: what an agent has to be able to do to try it.
        expected_impact: what it should change.
        failure_modes: how it may fail.
        complexity: how it scales.
        test_contract_refs: the tests that it has to pass.
        language_bindings: languages in which it can be implemented.
        formula_bundle: formulas beside it.
    """

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
    """A hypothesis with the confidence before and after it was tested.

    Attributes:
        claim_id: the name of the claim.
        hypothesis_id: the hypothesis that it is about.
        text: what is claimed.
        confidence_pre: before the test, 0..1.
        confidence_post: after it, 0..1.
    """

    claim_id: Name
    hypothesis_id: Name
    text: str
    confidence_pre: Fraction
    confidence_post: Fraction


class ArtifactPayload(Payload):
    """A reference to content by its SHA-256.

    Attributes:
        artifact_id: the name of the artifact.
        artifact_kind: what it is.
        artifact_uri: where it is, such as `artifact://sha256/…`.
        artifact_hash: `sha256:` and 64 hex digits of its bytes.
        language: of code.
        adapter: what reads or runs it.
        formula_bundle: formulas beside it.
    """

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
    """What a handler asks people; it is due at `expected_response_by` of its SIGNAL. `content` is shown to them.

    Attributes:
        text: what is asked, at most 8,192 characters.
        content: the data that it is about.
        on_timeout: what becomes of it when nobody answers in time.
        answer_schema: the JSON Schema of the fields that who approves fills in, at most 8 KiB; without it there are
            none.
    """

    text: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    content: OpenMap | None = None
    on_timeout: OnTimeout = OnTimeout.DENY
    answer_schema: OpenMap | None = None


class AgentRequest(Model):
    """What a handler asks another agent: typed data for its handler, which answers with a result of `returns`.

    In JSON, `schema_id` is the field `schema`.

    Attributes:
        schema_id: the registered schema of content, `name/version`.
        content: what is asked for.
        returns: the schema of the result.
    """

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap
    returns: SchemaId


class Result(Model):
    """What work, or a request, came to: `content` fits the registered schema. In JSON `schema_id` is `schema`.

    Attributes:
        schema_id: the registered schema of content, `name/version`.
        content: the result.
    """

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap


class AnswerSpec(Model):
    """The end of a question or request; the parent of its packet is the ASK. `seen` is the payload hash of the ASK.

    A request that was `answered` has a `result`; of one that `failed`, `note` says why.

    Attributes:
        outcome: how it ended.
        note: what the answerer adds, at most 8,192 characters.
        seen: lower-case hex SHA-256 of the canonical payload of the ASK that was answered.
        result: what an agent answers.
        content: the fields that a person fills in who approves; they fit the question's `answer_schema`.
    """

    outcome: AnswerOutcome
    note: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    seen: Sha256 | None = None
    result: Result | None = None
    content: OpenMap | None = None

    @model_validator(mode="after")
    def _result_fits_outcome(self) -> Self:
        if (self.result is not None) != (self.outcome is AnswerOutcome.ANSWERED):
            raise broken("result", "result goes with answered, and with no other outcome")
        if self.content is not None and self.outcome is not AnswerOutcome.APPROVED:
            raise broken("content", "content goes with approved, and with no other outcome")
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
    """A control signal: START has a SessionSpec or TaskSessionSpec as `session`, SYNC a SessionState, others none.

    Attributes:
        signal: which signal.
        reason: why, in words.
        expected_response_by: until when an answer is waited for.
        session: how to run the session, or its state.
    """

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
    """A control signal of a session. `question` or `request` goes with ASK, `answer` with ANSWER, `wake` with WAKE.

    Attributes:
        signal: which signal.
        reason: why, in words.
        expected_response_by: until when an answer is waited for; ASK needs it.
        session: of START how to run the session, of SYNC its state.
        question: what people are asked.
        request: what an agent is asked for.
        answer: the end of a question or request.
        wake: a timer.
    """

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
    """A sign of life.

    Attributes:
        signal: usually HEARTBEAT.
        reason: why, in words.
        expected_response_by: until when an answer is waited for.
        session: usually none.
    """

    @model_validator(mode="after")
    def _is_no_question(self) -> Self:
        if self.signal in SIGNALS_OF_1_1:
            raise broken("signal", f"{self.signal} is no sign of life: send it as SIGNAL")
        return self


# What an EVAL measures by: thresholds of apc/1.0; in apc/1.1 open metrics, each with the limits that it must keep.
MAX_METRICS: Final = 256


class Thresholds(Model):
    """The sender's own thresholds. They never widen the promotion gate.

    Attributes:
        rtf: 0..1.
        stability: 0..1.
        audit: 0..1.
        outcome: 0..1.
        learnability: 0..1.
        generalization_ratio: 0..2.
        drift_risk: 0..1, an upper limit.
    """

    rtf: Fraction
    stability: Fraction
    audit: Fraction
    outcome: Fraction
    learnability: Fraction
    generalization_ratio: Ratio
    drift_risk: Fraction | None = None


class MetricLimit(Model):
    """The smallest and the largest value that a metric may have, both included; at least one of them.

    Attributes:
        min: the smallest value; None = no limit.
        max: the largest value; None = no limit.
    """

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
    """Metrics by name, and limits of some of them.

    Attributes:
        metrics: name -> value, 1 to 256 of them.
        limits: name -> what the metric must keep.
    """

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
    """The measured gates.

    Attributes:
        rtf: share of runs that can be repeated, 0..1.
        stability: 0..1.
        audit: 0..1.
        outcome: how well the task is solved, 0..1.
        learnability: 0..1.
        generalization_ratio: the score on unseen data to that on known data, 0..2.
        symbol_coverage: 0..1.
        drift_risk: 0..1, the lower the better.
    """

    rtf: Fraction
    stability: Fraction
    audit: Fraction
    outcome: Fraction
    learnability: Fraction
    generalization_ratio: Ratio
    symbol_coverage: Fraction | None = None
    drift_risk: Fraction | None = None


class EvalPayload(Payload):
    """A measurement. In JSON, `passed` is the field `pass`; it is the sender's opinion, never the gate's.

    Attributes:
        metric_set: what was measured.
        thresholds: what the sender holds to be enough.
        passed: whether the sender holds it to be enough.
        notes: remarks.
    """

    metric_set: MetricSet
    thresholds: Thresholds
    passed: bool = Field(alias="pass")
    notes: tuple[str, ...] | None = None


class OpenEvalPayload(Measurements, Payload):
    """A measurement by open metrics instead of the `metric_set` of research (apc/1.1). `passed` as in EvalPayload.

    Attributes:
        metrics: name -> value, 1 to 256 of them.
        limits: name -> what the metric must keep.
        passed: whether the sender holds it to be enough.
        notes: remarks.
    """

    passed: bool = Field(alias="pass")
    notes: tuple[str, ...] | None = None


class TransferPolicy(Model):
    """The sender's conditions of a transfer; the stricter of these and the contract's holds.

    Attributes:
        mode: how the knowledge moves.
        min_generation: not before this generation.
        threshold_multiplier: 1..3: how far the sender's score must be above the receiver's.
        top_k: 1..10: at most this many transfers a generation.
    """

    mode: TransferMode
    min_generation: Count | None = None
    threshold_multiplier: Annotated[float, Field(ge=1, le=MAX_THRESHOLD_MULTIPLIER)] | None = None
    top_k: Annotated[int, Field(ge=1, le=MAX_TOP_K)] | None = None


class TransferPayload(Payload):
    """Protocol knowledge moving between swarms. `accepted` is ignored: the sender cannot know it.

    Attributes:
        protocol_id: what moves.
        from_swarm: the swarm that has it.
        to_swarm: the swarm that gets it.
        sender_score: the score of from_swarm, 0..1; the gate takes the verified one.
        receiver_score: the score of to_swarm, 0..1; the gate takes the verified one.
        transfer_policy: the sender's conditions.
        accepted: ignored.
    """

    protocol_id: Name
    from_swarm: Id
    to_swarm: Id
    sender_score: Fraction
    receiver_score: Fraction
    transfer_policy: TransferPolicy
    accepted: bool | None = None


class Candidate(Model):
    """One of the options of an arbitration.

    Attributes:
        candidate_id: its name in the arbitration.
        packet_ref_ids: the packets that it rests on.
        score_components: name -> part of the score.
        total_score: 0..1.
        risk_flags: what speaks against it.
    """

    candidate_id: Name
    packet_ref_ids: tuple[Uuid, ...]
    score_components: Mapping[str, float]
    total_score: Fraction
    risk_flags: tuple[str, ...] | None = None


class Veto(Model):
    """Who vetoed a winner, and why.

    Attributes:
        agent_id: who.
        reason: why, in words.
    """

    agent_id: Id
    reason: str


class ArbitrationPayload(Payload):
    """A comparison of candidates and its winner.

    Attributes:
        arbitration_id: the name of the arbitration.
        candidates: what is compared, at least two.
        winner_candidate_id: the candidate that won.
        scoring: component -> its weight.
        vetoes: who objected.
    """

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
    """A decision and what follows from it. `result` is of apc/1.1.

    Attributes:
        decision_id: the name of the decision.
        recommendation: what is to be done, in words.
        priority_distribution: option -> its weight, 0..1.
        next_actions: what follows, in words.
        commitment_level: how far it is binding; DONE ends a session of `task`.
        result: what the session came to.
    """

    decision_id: Name
    recommendation: str
    priority_distribution: Mapping[str, Fraction]
    next_actions: tuple[str, ...]
    commitment_level: CommitmentLevel | None = None
    result: Result | None = None


class RetractionPayload(Payload):
    """Takes a packet back; nothing is ever changed in place.

    Attributes:
        target_packet_id: the packet that is taken back.
        reason: why, in words.
        replacement_packet_id: the packet that takes its place.
    """

    target_packet_id: Uuid
    reason: str
    replacement_packet_id: Uuid | None = None


class AckPayload(Payload):
    """The acceptance of a packet.

    Attributes:
        acked_packet_id: the packet.
        ack_status: ACCEPTED or DEFERRED.
        reason: a remark.
    """

    acked_packet_id: Uuid
    ack_status: Literal[AckStatus.ACCEPTED, AckStatus.DEFERRED]
    reason: str | None = None


class NackPayload(Payload):
    """The rejection of a packet. The gate's own reasons have the form `CODE at PATH: message`.

    Attributes:
        acked_packet_id: the packet.
        ack_status: REJECTED or DEFERRED.
        reason: why.
    """

    acked_packet_id: Uuid
    ack_status: Literal[AckStatus.REJECTED, AckStatus.DEFERRED]
    reason: str | None = None


class ErrorPayload(Payload):
    """A failure at the sender.

    Attributes:
        error_code: a word for programs.
        message: what happened, in words.
        retryable: whether the same may work later.
        details: anything else.
    """

    error_code: Name
    message: str
    retryable: bool
    details: OpenMap | None = None


class MessagePayload(Payload):
    """Typed data of apc/1.1: `content` fits the registered schema. In JSON, `schema_id` is the field `schema`.

    Attributes:
        schema_id: the registered schema of content, `name/version`.
        content: the data.
        text: the same in words, for people and language models.
    """

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap
    text: str | None = None


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


def words_beside(payload: Payload) -> dict[str, Any]:
    """Return what a payload says beside its typed data, by field: a recipient, above all a model, reads it too.

    What `ctx.complete` writes without being asked, `done`, says nothing.
    """
    if isinstance(payload, MessagePayload):
        return {"text": payload.text} if payload.text else {}
    if not isinstance(payload, DecisionPayload):
        return {}
    said = {
        "recommendation": "" if payload.recommendation == "done" else payload.recommendation,
        "next_actions": list(payload.next_actions),
        "priority_distribution": dict(payload.priority_distribution),
    }
    return {name: value for name, value in said.items() if value}


WORDS_BESIDE: Final = frozenset({"text", "recommendation", "next_actions", "priority_distribution"})
"""The fields that `words_beside` may give."""
