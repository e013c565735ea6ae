"""The parts of a TASK_IR: its header, its five kinds of object, and the bundle of formulas."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from apc_contracts.contract_model import Count, Fraction, Id, Model, Name, OpenMap


class FalsifierCost(StrEnum):
    """What running a falsifier costs."""

    LOW = "low"
    MED = "med"
    HIGH = "high"
    EXTREME = "extreme"


class ConstraintKind(StrEnum):
    """What a constraint limits."""

    BUDGET = "BUDGET"
    SAFETY = "SAFETY"
    LATENCY = "LATENCY"
    QUALITY = "QUALITY"
    COMPLIANCE = "COMPLIANCE"


class EvidenceKind(StrEnum):
    """What an evidence refers to."""

    CODE = "code"
    TEST = "test"
    LOG = "log"
    TRACE = "trace"
    DOC = "doc"
    BENCH = "bench"


class IrHeader(Model):
    """The task's identity and the dialect it is written in.

    Attributes:
        task_id: the task.
        run_id: the run.
        swarm_id: the swarm that it is for.
        dialect_id: the dialect that it is written in.
        dialect_hash: a hash of that dialect.
    """

    task_id: Id
    run_id: Id
    swarm_id: Id
    dialect_id: Name
    dialect_hash: Name


class IrClaim(Model):
    """A hypothesis with the confidence before and after it was tested.

    Attributes:
        type: `Claim`.
        id: its name in the task.
        hypothesis_id: the hypothesis that it is about.
        text: what is claimed.
        confidence_pre: before the test, 0..1.
        confidence_post: after it, 0..1.
    """

    type: Literal["Claim"] = "Claim"
    id: Name
    hypothesis_id: Name
    text: str
    confidence_pre: Fraction
    confidence_post: Fraction


class IrFalsifier(Model):
    """A test that would refute a claim.

    Attributes:
        type: `Falsifier`.
        id: its name in the task.
        target_claim_id: the claim that it would refute.
        test: what to do.
        fail_if: the outcome that refutes the claim.
        cost: what running it costs.
    """

    type: Literal["Falsifier"] = "Falsifier"
    id: Name
    target_claim_id: Name
    test: str
    fail_if: str
    cost: FalsifierCost


class IrDecision(Model):
    """A recommendation with the weights of its options.

    Attributes:
        type: `Decision`.
        id: its name in the task.
        recommendation: what is to be done, in words.
        priority_distribution: option -> its weight, 0..1.
        next_actions: what follows, in words.
    """

    type: Literal["Decision"] = "Decision"
    id: Name
    recommendation: str
    priority_distribution: Mapping[str, Fraction]
    next_actions: tuple[str, ...]


class IrConstraint(Model):
    """A limit of the task.

    `expression` is any text; for BUDGET, `packets=N; wall_ms=N; tokens=N; cost=X` (any subset) reserves that
    much.

    Attributes:
        type: `Constraint`.
        id: its name in the task.
        constraint_kind: what it limits.
        expression: the limit.
    """

    type: Literal["Constraint"] = "Constraint"
    id: Name
    constraint_kind: ConstraintKind
    expression: str


class IrEvidence(Model):
    """A reference that supports a claim or speaks against it.

    Attributes:
        type: `Evidence`.
        id: its name in the task.
        kind: what it refers to.
        ref: where it is.
        supports: whether it supports the claim; False = it speaks against it.
    """

    type: Literal["Evidence"] = "Evidence"
    id: Name
    kind: EvidenceKind
    ref: str
    supports: bool


IrObject = Annotated[
    IrClaim | IrFalsifier | IrDecision | IrConstraint | IrEvidence,
    Field(discriminator="type"),
]


class Normalization(Model):
    """How the sender normalised the task.

    Attributes:
        ordering: how objects were ordered.
        text_normalization: such as `NFC`.
        hash_algorithm: such as `sha256`.
        canonical_hash: the hash of the normalised task; not checked.
    """

    ordering: str | None = None
    text_normalization: str | None = None
    hash_algorithm: str | None = None
    canonical_hash: str | None = None


class OdeSystem(Model):
    """A system of ordinary differential equations. Carried, never executed.

    Attributes:
        state_variables: names, at least one.
        equations: one a variable.
        parameters: name -> value.
        initial_state: variable -> value.
        time_start: in the model's unit.
        time_end: in the model's unit.
        num_points: 5..100,000 points of time.
    """

    state_variables: Annotated[tuple[str, ...], Field(min_length=1)]
    equations: Annotated[tuple[str, ...], Field(min_length=1)]
    parameters: Mapping[Name, float]
    initial_state: Mapping[Name, float]
    time_start: float | None = None
    time_end: float | None = None
    num_points: Annotated[Count, Field(ge=5, le=100_000)] | None = None


class FormulaBundle(Model):
    """Formulas beside a task, an idea or an artifact. Carried, validated and stored, never executed.

    Attributes:
        representation_version: of the bundle.
        latex_full: the formula in LaTeX.
        latex_compact: the same, short.
        sympy_str: the formula as sympy prints it.
        sympy_canonical: the same, simplified.
        ast_json: the syntax tree as a JSON object.
        domains: the fields of mathematics.
        var_ontology: variable -> what it means: a text, or an object that describes it.
        functor_map: how it maps to other formulas.
        simulation_snippet: code that simulates it.
        equilibria_sympy: fixed points.
        ode_system: differential equations.
    """

    representation_version: str | None = None
    latex_full: str | None = None
    latex_compact: str | None = None
    sympy_str: str | None = None
    sympy_canonical: str | None = None
    ast_json: OpenMap | None = None
    domains: tuple[str, ...] | None = None
    var_ontology: Mapping[Name, str | OpenMap] | None = None
    functor_map: JsonValue = None
    simulation_snippet: str | None = None
    equilibria_sympy: JsonValue = None
    ode_system: OdeSystem | None = None
