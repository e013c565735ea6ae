"""Research briefs: what the librarian tells each role in a TASK_IR, and how the role reads it back."""

import hashlib
from collections.abc import Mapping, Sequence

import rfc8785
from pydantic import BaseModel, ConfigDict

from apc_automl.data.table_profile import TableProfile
from apc_automl.data.table_schema import ProblemKind
from apc_automl.swarm.members import SENTINEL_SWARM
from apc_automl.training.material import Blob, Study
from apc_automl.training.spaces import FAMILIES, families_of
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


# The data of a run, fetched by hash and kept while a role works on it.

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
