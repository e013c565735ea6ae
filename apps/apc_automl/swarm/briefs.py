"""Research briefs: who takes part, what the librarian tells each role in a TASK_IR, and the data named there."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import rfc8785
from pydantic import BaseModel, ConfigDict, Field

from apc_automl.data.table_schema import ProblemKind
from apc_automl.training.material import Blob, Study
from apc_automl.training.recipes import FAMILIES, SWARMS, families_of
from apc_bus.artifacts import ArtifactStore
from apc_contracts.payloads.by_type import TaskIrPayload
from apc_contracts.payloads.task_ir import (
    ConstraintKind,
    EvidenceKind,
    FalsifierCost,
    IrClaim,
    IrConstraint,
    IrEvidence,
    IrFalsifier,
    IrHeader,
)

LIBRARIAN = "librarian"
LIBRARY_SWARM = "library"
SENTINEL = "sentinel"
SENTINEL_SWARM = "sentinel"
CONVERGENCE = "CONTROLLED_CONVERGENCE"
WORKING_STATES = frozenset({"INDEPENDENT_DISCOVERY", "SELECTIVE_TRANSFER", CONVERGENCE})
"""The session's states in which swarms make generations."""
FACTOR = 10.0
"""Two counts that differ by this factor, or by more, are as different as counts can be."""
INCOMPARABLE = math.inf


class TableProfile(BaseModel):
    """The features that the distance reads. Shares are in 0..1."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    problem: ProblemKind
    rows: int = Field(ge=0)
    numeric_columns: int = Field(ge=0)
    """With the dates."""
    categorical_columns: int = Field(ge=0)
    """With the texts."""
    missing_share: float = Field(ge=0, le=1)
    """Of all feature cells."""
    classes: int = Field(ge=0)
    """0 for a regression."""
    spread: float = Field(ge=0, le=1)
    """Classification: entropy of the classes over that of equal ones. Regression: deviation over range."""

    @classmethod
    def of(cls, profile: Mapping[str, Any]) -> Self:
        """Return the profile from the result of `profile_table`."""
        numeric = profile["numeric_columns"] + profile["date_columns"]
        categorical = profile["categorical_columns"] + profile["text_columns"]
        columns = numeric + categorical
        target = profile["target_summary"]
        is_regression = profile["problem"] == ProblemKind.REGRESSION
        return cls(
            problem=profile["problem"],
            rows=profile["rows"],
            numeric_columns=numeric,
            categorical_columns=categorical,
            missing_share=_rounded(sum(profile["missing_share"].values()) / max(1, columns)),
            classes=0 if is_regression else len(target),
            spread=_rounded(_deviation(target) if is_regression else _evenness(list(target.values()))),
        )

    @property
    def expression(self) -> str:
        """As it stands in a brief; `read` takes it."""
        return self.model_dump_json()

    @classmethod
    def read(cls, expression: str) -> Self:
        """Return the inverse of `expression`. Raises ValueError for anything else."""
        return cls.model_validate_json(expression)


def distance(one: TableProfile, other: TableProfile) -> float:
    """Return the distance of two tables: 0 for equal profiles, up to 1; infinite for different problems.

    The mean of six differences: rows, numeric columns, categorical columns and classes by the logarithm of their ratio
    (a factor of ten or more is 1), missing share and spread by their difference.
    """
    if one.problem is not other.problem:
        return INCOMPARABLE
    differences = (
        _ratio(one.rows, other.rows),
        _ratio(one.numeric_columns, other.numeric_columns),
        _ratio(one.categorical_columns, other.categorical_columns),
        _ratio(one.classes, other.classes),
        abs(one.missing_share - other.missing_share),
        abs(one.spread - other.spread),
    )
    return sum(differences) / len(differences)


def _ratio(one: int, other: int) -> float:
    return min(1.0, abs(math.log(1 + one) - math.log(1 + other)) / math.log(FACTOR))


def _evenness(shares: list[float]) -> float:
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return min(1.0, entropy / math.log(len(shares))) if len(shares) > 1 else 0.0


def _deviation(target: Mapping[str, float]) -> float:
    width = target["highest"] - target["lowest"]
    return min(1.0, target["deviation"] / width) if width > 0 else 0.0


def _rounded(share: float) -> float:
    return round(min(1.0, max(0.0, share)), 4)


def builder_id(swarm: str) -> str:
    """Return the agent id of a swarm's builder."""
    return f"builder-{swarm}"


BUILDERS = tuple(builder_id(swarm) for swarm in SWARMS)


DIALECT = "apc-automl-recipes/1"
SLICES = ("schema", "train", "held-out")
REST = "rest"
"""Rows for the winner's last training that the search does not look at."""
TABLE_PROFILE = "table-profile"
"""What the table looks like, for the report."""
UNTOUCHED = "untouched-"
PRIOR = "prior-"
PROFILE = "profile"
SEED, CANDIDATES = "seed", "candidates"


class Brief(BaseModel):
    """What a role knows of the run: its seed and its data by hash. Kept in `ctx.state`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seed: int
    slices: Mapping[str, str]
    """`schema`, `train`, `held-out`, and for the sentinel alone `untouched-1`, … : the artifact's hash."""
    priors: tuple[str, ...] = ()
    """Recipes by hash that earlier runs on similar tables found good, best first: to begin with."""
    profile: TableProfile | None = None
    """What the table looks like."""
    candidates: int = 1
    """How many methods a swarm cross-validates in each generation before it trains the best of them."""

    def untouched(self, round_number: int) -> str:
        """Hash of the slice that validates a round (rounds count from 1)."""
        names = sorted(name for name in self.slices if name.startswith(UNTOUCHED))
        return self.slices[names[min(max(round_number, 1), len(names)) - 1]]


def brief_payload(
    swarm: str,
    task_id: str,
    run_id: str,
    profile: TableProfile,
    brief: Brief,
    facts: Sequence[str],
    belief: float = 0.5,
) -> TaskIrPayload:
    """Return the TASK_IR of one role: a hypothesis, what would refute it, the limits, and the data by hash.

    Args:
        facts: sentences about the table, for people.
        belief: how far the librarian believes the hypothesis before anything is measured.
    """
    claim_id = f"{swarm}-can"
    claim = IrClaim(
        id=claim_id,
        hypothesis_id=claim_id,
        text=_hypothesis(swarm, profile.problem),
        confidence_pre=belief,
        confidence_post=belief,
    )
    falsifier = IrFalsifier(
        id=f"{swarm}-fails",
        target_claim_id=claim_id,
        test="the outcome on data that no training has seen",
        fail_if="outcome < 0.5",
        cost=FalsifierCost.LOW,
    )
    numbers = [
        IrConstraint(id=name, constraint_kind=ConstraintKind.QUALITY, expression=f"{name}={value}")
        for name, value in ((SEED, brief.seed), (CANDIDATES, brief.candidates))
    ]
    looks = IrConstraint(id=PROFILE, constraint_kind=ConstraintKind.QUALITY, expression=profile.expression)
    table = [
        IrConstraint(id=f"table-{number}", constraint_kind=ConstraintKind.QUALITY, expression=fact)
        for number, fact in enumerate(facts, start=1)
    ]
    evidence = [
        IrEvidence(id=name, kind=EvidenceKind.DOC, ref=ref, supports=True) for name, ref in brief.slices.items()
    ]
    evidence += [
        IrEvidence(id=f"{PRIOR}{number}", kind=EvidenceKind.BENCH, ref=ref, supports=True)
        for number, ref in enumerate(brief.priors, start=1)
    ]
    header = IrHeader(task_id=task_id, run_id=run_id, swarm_id=swarm, dialect_id=DIALECT, dialect_hash=dialect_hash())
    return TaskIrPayload(ir_header=header, objects=(claim, falsifier, *numbers, looks, *table, *evidence))


def read_brief(payload: TaskIrPayload) -> Brief | None:
    """Return the brief in a TASK_IR; None when it is not one of the librarian's."""
    if payload.ir_header.dialect_id != DIALECT:
        return None
    evidence = {thing.id: thing.ref for thing in payload.objects if isinstance(thing, IrEvidence)}
    slices = {name: ref for name, ref in evidence.items() if not name.startswith(PRIOR)}
    priors = tuple(ref for name, ref in evidence.items() if name.startswith(PRIOR))
    said = {thing.id: thing.expression for thing in payload.objects if isinstance(thing, IrConstraint)}
    if SEED not in said or not all(name in slices for name in SLICES):
        return None
    return Brief(
        seed=number_in(said, SEED),
        slices=slices,
        priors=priors,
        profile=_profile_in(said),
        candidates=number_in(said, CANDIDATES, 1),
    )


def number_in(said: Mapping[str, str], name: str, default: int = 0) -> int:
    """Return the number of a constraint `name=number` in a brief; the default in a brief without it."""
    return int(said[name].removeprefix(f"{name}=")) if name in said else default


def _profile_in(said: Mapping[str, str]) -> TableProfile | None:
    """Return the profile; None where another build has written what this one cannot read."""
    try:
        return TableProfile.read(said[PROFILE]) if PROFILE in said else None
    except ValueError:
        return None


def brief_keys(swarm: str, problem: ProblemKind) -> tuple[str, ...]:
    """Return the symbolic keys of a brief: one that all swarms share, and the swarm's own (differentiated research)."""
    families = families_of(swarm, problem) or ["verification", "validation", "veto"]
    # A family may have the name of its swarm; a key stands once.
    return tuple(dict.fromkeys(("audited-automl", swarm, *families)))


def dialect_hash() -> str:
    """Hash of the search space: two builds with one hash mean the same by a recipe."""
    spaces = {
        name: {
            "preprocessing": {axis: list(options) for axis, options in family.preprocessing.items()},
            "parameters": {axis: list(options) for axis, options in family.parameters.items()},
        }
        for name, family in FAMILIES.items()
    }
    return "sha256:" + hashlib.sha256(rfc8785.dumps(spaces)).hexdigest()


def _hypothesis(swarm: str, problem: ProblemKind) -> str:
    if swarm == SENTINEL_SWARM:
        return f"every measured outcome of this {problem.value} can be reproduced from the artifacts alone"
    intents = "; ".join(FAMILIES[family].intent for family in families_of(swarm, problem))
    return f"one of these learns this {problem.value} best: {intents}"


RUNS_KEPT = 4


async def fetch(artifacts: ArtifactStore, artifact_hash: str) -> Blob:
    """Return the bytes of a hash, verified by the store. Raises ArtifactError."""
    return Blob(artifact_hash, await artifacts.get(artifact_hash))


class StudyCache:
    """The study of each run that a role takes part in; a cache, rebuilt from the brief at need."""

    def __init__(self) -> None:
        self._studies: dict[tuple[str, ...], Study] = {}

    async def study(self, brief: Brief, artifacts: ArtifactStore) -> Study:
        """Return what a recipe is measured on, as the brief says. Raises ArtifactError."""
        names = (brief.slices["schema"], brief.slices["train"], brief.slices["held-out"])
        key = (*names, str(brief.seed))
        if key not in self._studies:
            schema, train, held_out = [await fetch(artifacts, name) for name in names]
            while len(self._studies) >= RUNS_KEPT:
                self._studies.pop(next(iter(self._studies)))
            self._studies[key] = Study(schema, train, held_out, brief.seed)
        return self._studies[key]
