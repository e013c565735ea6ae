"""The contract: a loaded and checked contract file.

`load_contract()` returns the packaged file, `load_contract(path)` a deployment's own. A deployment's file has every
guard compiled and checked when it is loaded. The packaged one skips that: a test checks it, and importing CEL takes
longer than everything else a worker does at start. Its guards compile at their first evaluation. A service that must
not stall at its first packet calls `check_guards(contract)` while it starts.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, Final

from pydantic import BaseModel, ValidationError

from apc_contracts.contract import file as shape
from apc_contracts.contract.coordinators import Coordinator
from apc_contracts.contract.file import (
    LIFECYCLE_MACHINE,
    ContractFile,
    Limits,
    check_contract,
    check_deployable,
    fact_types,
)
from apc_contracts.contract.machines import (
    DriftChecks,
    Guard,
    Machine,
    PhasePolicy,
    PromotionGate,
    build_drift_checks,
    build_machine,
    build_policy,
    build_promotion_gate,
    refuse_dear_groups,
)
from apc_contracts.contract.rules import Team, build_team
from apc_contracts.errors import ContractInvalid
from apc_contracts.payloads.by_type import OpenEvalPayload
from apc_contracts.vocabulary import PacketType, RunPhase

# Read files of contracts: at most so many bytes, and of a folder only what really stands in it.

MAX_BYTES: Final = 256 * 1024
"""Of one file, thirteen times the packaged one: a session's log message carries its contract."""
MAX_FILES: Final = 100
"""In one folder."""


def read_contract_file(path: Path) -> bytes:
    """Return the bytes of a file that an operator names. Raises OSError, ContractInvalid: it is too large."""
    with path.open("rb") as opened:
        return _bounded(opened)


def read_contract_folder(folder: Path) -> list[tuple[Path, bytes]]:
    """Return the `*.json` of a folder, sorted by name, with their bytes.

    A link may lead to another place in the folder (Kubernetes mounts files so), never out of it.

    Raises:
        ContractInvalid: it is no folder, has too many files, or one is too large, no file, or a link that leads out.
    """
    if not folder.is_dir():
        raise ContractInvalid("$", "APC_CONTRACTS is no folder: name one that exists", str(folder))
    paths = sorted(folder.glob("*.json"))
    if len(paths) > MAX_FILES:
        raise ContractInvalid("$", f"it has {len(paths)} files, {MAX_FILES} are allowed: move some out", str(folder))
    return [(path, _read_inside(folder, path)) for path in paths]


def _read_inside(folder: Path, path: Path) -> bytes:
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(folder.resolve()):
            raise ContractInvalid("$", "it is a link that leads out of the folder: put the file there", str(path))
        # Not a moment is waited for the writer of a pipe; what is opened is what is looked at.
        with os.fdopen(os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as opened:
            if not S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ContractInvalid("$", "it is no file: move it out of the folder", str(path))
            return _bounded(opened)
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError in Python 3.11 and 3.12
        said = getattr(error, "strerror", None) or error
        raise ContractInvalid("$", f"cannot read it: {said}", str(path)) from error
    except ContractInvalid as error:
        raise ContractInvalid(error.place, error.message, str(path)) from error


def _bounded(opened: BinaryIO) -> bytes:
    body = opened.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise ContractInvalid("$", f"it has more than {MAX_BYTES} bytes: shorten it")
    return body


PACKAGED_CONTRACT = "data/apc-1.0.json"
PACKAGED_TASK_CONTRACT = "data/task-1.1.json"


@dataclass(frozen=True, slots=True, eq=False)
class Contract:
    """Every number, list, table and guard of docs/specification/contract.md sections 4 to 12.

    Immutable; compared by identity. `hash` is the SHA-256 of the file's bytes: it is stored with every session and
    verdict. The sections `limits`, `session`, `selection`, … are the file's own (`ContractFile`).
    """

    name: str
    coordinator: Coordinator
    speaks: frozenset[str]
    hash: bytes
    body: bytes
    """The file's bytes: the log keeps them, so that a verdict can be recomputed as long as it is stored."""
    file: ContractFile
    machines: Mapping[str, Machine]
    policies: Mapping[RunPhase, PhasePolicy]
    promotion_gate: PromotionGate
    drift: DriftChecks
    loops: shape.Loops
    limits: Limits
    verification: shape.VerificationRules
    retraction: shape.RetractionRules
    superseding: shape.SupersedingRules
    session: shape.SessionRules
    selection: shape.Selection
    effectiveness: shape.Effectiveness
    rights: shape.Rights
    windows: tuple[shape.TransferWindow, ...]
    refusals: shape.Refusals
    lineage_required: frozenset[PacketType]
    proof_required: frozenset[PacketType]
    signature_required: frozenset[PacketType]
    recorded_after_end: frozenset[PacketType]
    control_types: frozenset[PacketType]
    barrier_phases: frozenset[RunPhase]
    team: Team | None
    """The rules that overlays have added; None in most contracts."""
    _phase_of_state: Mapping[str, RunPhase] = field(repr=False)
    _raised_by: Mapping[str, tuple[str, ...]] = field(repr=False)

    def machine(self, name: str) -> Machine:
        """Return the machine of that name.

        Raises:
            ContractInvalid: the contract has no such machine.
        """
        if name not in self.machines:
            known = ", ".join(sorted(self.machines))
            raise ContractInvalid("machines", f"there is no machine {name!r}; there are: {known}")
        return self.machines[name]

    def phase_of(self, state: str) -> RunPhase | None:
        """Return the run_phase of a session state; None for HALTED, which keeps the phase it came from."""
        return self._phase_of_state.get(state)

    def policy(self, phase: RunPhase) -> PhasePolicy:
        """Return the row of the phase table."""
        return self.policies[phase]

    def window(self, generation: int) -> shape.TransferWindow:
        """Return the transfer window that contains this generation; the last one has no end."""
        last = self.windows[-1]
        return next((window for window in self.windows[:-1] if generation <= _end(window)), last)

    def raised_by(self, raiser: str) -> tuple[str, ...]:
        """Return the session events that a packet of this type (or `receipts`) can raise.

        No other guard needs to run.
        """
        return self._raised_by.get(raiser, ())

    def guards(self) -> Iterator[Guard]:
        """Yield every guard of the contract, those of its conjunctions included."""
        for machine in self.machines.values():
            yield from (edge.guard for edge in machine.edges if edge.guard is not None)
        yield from (policy.transfer.guard for policy in self.policies.values() if policy.transfer is not None)
        yield from (guard for _, guard in self.promotion_gate.criteria)
        for group in (self.drift.enforced, self.drift.warned, self.drift.at_barrier, self.drift.offline):
            yield from (rule.guard for rule in group.rules)
            yield group.whole


def load_contract(path: Path | str | None = None) -> Contract:
    """Return the contract of a file, or the packaged apc/1.0 without a path (loaded once per process).

    ```python
    assert load_contract().name == "apc-1.0"
    try:
        load_contract("no-such-file.json")
    except ContractInvalid as error:
        assert "no-such-file.json" in str(error)
    ```

    Raises:
        ContractInvalid: the file cannot be read or has a gap; names the place.
    """
    if path is None:
        return _packaged_contract()
    try:
        body = read_contract_file(Path(path))
    except OSError as error:
        raise ContractInvalid("$", f"cannot read it: {error.strerror}", str(path)) from error
    except ContractInvalid as error:
        raise ContractInvalid(error.place, error.message, str(path)) from error
    return deployed_contract(body, path)


def deployed_contract(body: bytes, path: Path | str) -> Contract:
    """Return the contract that a deployment's file holds. Raises ContractInvalid, with the file's name."""
    try:
        contract = contract_from_bytes(body)
        check_deployment(contract)
    except ContractInvalid as error:
        raise ContractInvalid(error.place, error.message, str(path)) from error
    return contract


def check_deployment(contract: Contract) -> None:
    """Check what a deployment's own contract must hold beside its shape. Raises ContractInvalid, with the place."""
    check_guards(contract)
    check_deployable(contract.file)
    _check_lifecycle(contract)


def _check_lifecycle(contract: Contract) -> None:
    """Check that the contract has the packaged edges of the packet lifecycle. Raises ContractInvalid."""
    own = contract.machine(LIFECYCLE_MACHINE)
    for edge in _packaged_contract().machine(LIFECYCLE_MACHINE).edges:
        found, named = own.edge(edge.source, edge.event), f"the edge from {edge.source} with {edge.event}"
        if found is None:
            message = f"{named} to {edge.target} is missing: the gate raises it in every session"
        elif found.target != edge.target:
            message = f"{named} must lead to {edge.target}"
        elif found.guard is not None:
            message = f"{named} has a guard: leave it out"
        else:
            continue
        raise ContractInvalid(f"machines.{LIFECYCLE_MACHINE}.edges", message)


def check_guards(contract: Contract) -> None:
    """Compile and check every guard of the contract; imports CEL.

    Raises:
        ContractInvalid: the first guard that cannot be used, with its place.
    """
    # If a criterion of the promotion gate is wrong, name it, not the conjunction that an edge carries.
    for _, guard in contract.promotion_gate.criteria:
        guard.check()
    for guard in contract.guards():
        guard.check()
    refuse_dear_groups((guard for _, guard in contract.promotion_gate.criteria), "promotion_gate")
    checks = (*contract.drift.enforced.rules, *contract.drift.warned.rules)
    refuse_dear_groups((rule.guard for rule in checks), "drift_checks")
    if contract.team is not None:
        contract.team.check()
        _check_chain(contract)


def _check_chain(contract: Contract) -> None:
    """Check that the files of which the rules were made end with this contract, each once. Raises ContractInvalid."""
    assert contract.team is not None
    names = [link.name for link in contract.team.file.chain]
    if names[-1] != contract.name:
        message = f"the last file is {names[-1]}, and the contract {contract.name}: register the overlay of that name"
        raise ContractInvalid(f"team.chain[{len(names) - 1}].name", message)
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ContractInvalid(f"team.chain[{index}].name", f"{name} stands in the chain twice: keep one")


def contract_from_bytes(body: bytes) -> Contract:
    """Return the contract of these bytes, its guards not yet compiled.

    Raises:
        ContractInvalid: not JSON, wrong shape, or a hole; names the place.
    """
    file = _read_file(body)
    check_contract(file)
    gate = build_promotion_gate(file)
    return Contract(
        name=file.name,
        coordinator=file.coordinator,
        speaks=frozenset(file.speaks),
        hash=sha256(body).digest(),
        body=body,
        file=file,
        machines={name: build_machine(file, name, gate.whole) for name in file.machines},
        policies={phase: build_policy(file, phase) for phase in file.phases},
        promotion_gate=gate,
        drift=build_drift_checks(file),
        loops=file.loops,
        limits=file.limits,
        verification=file.verification,
        retraction=file.retraction,
        superseding=file.superseding,
        session=file.session,
        selection=file.selection,
        effectiveness=file.effectiveness,
        rights=file.rights,
        windows=file.transfer_windows,
        refusals=file.refusals,
        lineage_required=frozenset(file.required.lineage),
        proof_required=frozenset(file.required.proof_bundle),
        signature_required=frozenset(file.required.signature),
        recorded_after_end=frozenset(file.session.recorded_after_end),
        control_types=frozenset(file.control_types),
        barrier_phases=frozenset(file.barrier_phases),
        team=build_team(file),
        _phase_of_state=dict(file.phase_of_state),
        _raised_by={str(raiser): events for raiser, events in file.raised_by.items()},
    )


@cache
def task_contract() -> Contract:
    """Return the packaged contract `task` (loaded once per process)."""
    return contract_from_bytes((files("apc_contracts") / PACKAGED_TASK_CONTRACT).read_bytes())


@cache
def _packaged_contract() -> Contract:
    return contract_from_bytes(packaged_contract_bytes())


def packaged_contract_bytes() -> bytes:
    """Return the file of the packaged apc/1.0: its hash is taken over these bytes."""
    return (files("apc_contracts") / PACKAGED_CONTRACT).read_bytes()


def _read_file(body: bytes) -> ContractFile:
    try:
        json.loads(body, object_pairs_hook=_refuse_duplicate_keys)
        return ContractFile.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ContractInvalid(_place(first["loc"]), first["msg"]) from error
    except (ValueError, RecursionError) as error:
        raise ContractInvalid("$", f"the file is not JSON: {error}") from error


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ContractInvalid(key, "the key stands there twice in one object")
        seen.add(key)


def _place(location: tuple[int | str, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).lstrip(".") or "$"


def _end(window: shape.TransferWindow) -> int:
    return -1 if window.last_generation is None else window.last_generation


# The promotion gate (docs/specification/contract.md section 7): what an EVAL's metrics must reach.
#
# A missing metric fails it.

MetricSet = BaseModel | Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """Whether the gate is passed; `failed` names the metrics that fell short, in the gate's order."""

    passed: bool
    failed: tuple[str, ...] = ()


def passes_promotion(metric_set: MetricSet, contract: Contract) -> PromotionResult:
    """Judge an EVAL's `metric_set`; the EVAL's own `pass` and `thresholds` do not count.

    ```python
    poor = MetricSet(rtf=0.1, stability=0.9, audit=0.9, outcome=0.9, learnability=0.9, generalization_ratio=1.0)
    result = passes_promotion(poor, load_contract())
    assert not result.passed and "rtf" in result.failed
    ```
    """
    facts = metric_facts(metric_set)
    if contract.promotion_gate.whole.holds(facts):
        return PromotionResult(passed=True)
    failed = tuple(metric for metric, guard in contract.promotion_gate.criteria if not guard.holds(facts))
    return PromotionResult(passed=False, failed=failed)


def passes_open_metrics(payload: OpenEvalPayload, contract: Contract) -> bool:
    """Judge open metrics: each within its limits, and the contract's promotion gate, if it has criteria."""
    if payload.missed:
        return False
    declared = fact_types(contract.file, "promotion")
    named = {name: value for name, value in payload.metrics.items() if name in declared}
    return not contract.promotion_gate.criteria or passes_promotion(named, contract).passed


def metric_facts(metric_set: MetricSet) -> dict[str, Any]:
    """Return the metrics as facts for guards; absent ones are left out."""
    metrics = metric_set.model_dump() if isinstance(metric_set, BaseModel) else metric_set
    return {name: value for name, value in metrics.items() if value is not None}
