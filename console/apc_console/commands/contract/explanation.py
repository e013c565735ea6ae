"""A contract in words: who may send what when, what moves a session on, and what ends it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from apc_bus.settings import BusSettings
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_contracts import PacketType
from apc_contracts.contract.collection import load_contracts
from apc_contracts.contract.contract import Contract, contract_from_bytes, load_contract
from apc_contracts.contract.coordinators import STOP, Coordinator
from apc_contracts.contract.file import EdgeDeclaration
from apc_contracts.errors import ContractInvalid
from apc_log.registry import read_contracts

SESSION_MACHINE = "inter_agent_coordination"
_TASK_EVENTS = {
    "work_started": "the opener sends the first TASK_IR or MESSAGE",
    "work_done": "a decider sends DECISION DONE, and the session has no reviewers",
    "review_requested": "a decider sends DECISION DONE, and the session has reviewers",
    "review_passed": "enough distinct reviewers send DECISION APPROVED with that DONE as parent",
    "review_failed": "a reviewer sends VETO, or the DONE is retracted",
}
_TASK_ENDS = (
    "CANCEL, DEADLINE, BUDGET_EXHAUSTED, NOT_STARTED, STALLED, HANDLER_FAILED (unless on_failure is continue), "
    "or REVIEW_FAILED after the last round"
)


async def find_contract(name: str) -> Contract:
    """Return the contract of a file that exists or ends in .json; else the one of that name.

    A name is looked up among the deployment's default, the packaged ones and APC_CONTRACTS, then in the log.

    Raises:
        ContractInvalid: there is none, or it cannot be used.
        ServiceAway, DatabaseUnavailable: the log that is configured cannot be read.
    """
    if _is_file(name):
        return load_contract(name)
    settings = BusSettings()
    known = load_contracts(settings.contract, settings.contracts)
    found = known.named(name)
    return found if found is not None else await _registered(name, known.names)


def _is_file(name: str) -> bool:
    return name.endswith(".json") or Path(name).is_file()


async def _registered(name: str, others: Sequence[str]) -> Contract:
    try:
        async with open_log() as pool:
            documents = {one.name: one.document for one in await read_contracts(pool)}
    except InputUnusable as error:
        message = (
            f"there is no contract {name!r}; there are: {', '.join(others)}. Registered ones are in the log: {error}"
        )
        raise ContractInvalid("name", message) from error
    if name not in documents:
        there = ", ".join(sorted({*others, *documents}))
        raise ContractInvalid("name", f"there is no contract {name!r}; there are: {there}")
    return contract_from_bytes(documents[name].encode())


def explained(contract: Contract) -> Iterator[str]:
    """Yield the contract in words, line by line."""
    spoken = " and ".join(sorted(contract.speaks))
    yield f"{contract.name}: sessions of the coordinator {contract.coordinator}, which speak {spoken}."
    yield from _who_sends(contract)
    yield from _what_checks(contract)
    yield from _what_moves(contract)
    yield from _what_ends(contract)


def _who_sends(contract: Contract) -> Iterator[str]:
    yield ""
    yield "Who may send what when"
    machine = contract.file.machines[SESSION_MACHINE]
    for state in machine.states:
        phase = contract.phase_of(state)
        if phase is None or state in machine.terminal:
            continue
        types = contract.file.phases[phase].packet_types
        yield f"  In {state} (run_phase {phase}) members may send {_listed(types)}."
    yield f"  In every state: {_listed(contract.file.control_types)}."
    yield f"  After the end: {_listed(contract.session.recorded_after_end)}; they are recorded and change nothing."
    for signal, right in contract.rights.signals.items():
        yield f"  SIGNAL {signal} needs the right {right}."
    if contract.coordinator is Coordinator.TASK:
        yield "  START names deciders and reviewers: DECISION DONE is for the first, VETO and approval for the second."
    else:
        yield f"  A DECISION that moves the session needs the right {contract.rights.moves_session}."
    for part, required in (
        ("a lineage", contract.lineage_required),
        ("a proof_bundle", contract.proof_required),
        ("a signature", contract.signature_required),
    ):
        if required:
            yield f"  Only with {part}: {_listed(sorted(required))}."


def _what_checks(contract: Contract) -> Iterator[str]:
    checks = contract.file.drift_checks
    if not checks:
        return
    yield ""
    yield "What is checked in each packet of an agent, control types aside"
    for check in checks:
        effect = "else refused with DRIFT_CHECK_FAILED" if check.mode == "enforce" else "else a warning in the log"
        if check.mode != "off":
            yield f"  {check.name}, at {check.path}: {check.guard}; {effect}."


def _what_moves(contract: Contract) -> Iterator[str]:
    yield ""
    yield "What moves a session on"
    for edge in _edges(contract):
        if edge.event != STOP:
            yield f"  {' or '.join(edge.sources)} to {edge.to}: {_cause(contract, edge)}."


def _cause(contract: Contract, edge: EdgeDeclaration) -> str:
    if contract.coordinator is Coordinator.TASK:
        cause = f"{edge.event}: {_TASK_EVENTS[edge.event]}"
    else:
        raisers = [str(raiser) for raiser, events in contract.file.raised_by.items() if edge.event in events]
        cause = f"{edge.event}, which can come after {_listed(raisers)}"
    if edge.gate is not None:
        gate = " and ".join(criterion.guard for criterion in contract.file.promotion_gate)
        return f"{cause}; only if {gate}"
    return cause if edge.guard is None else f"{cause}; only if {edge.guard}"


def _what_ends(contract: Contract) -> Iterator[str]:
    yield ""
    yield "What ends it"
    for edge in _edges(contract):
        if edge.to == "CLOSED":
            yield f"  CLOSED, the good end: {edge.event} from {' or '.join(edge.sources)}."
    stops = _TASK_ENDS if contract.coordinator is Coordinator.TASK else "CANCEL, a spent budget, or a missed deadline"
    if any(edge.event == STOP for edge in _edges(contract)):
        yield f"  HALTED: STOP, {stops}."


def _edges(contract: Contract) -> tuple[EdgeDeclaration, ...]:
    return contract.file.machines[SESSION_MACHINE].edges


def _listed(names: "list[str] | list[PacketType] | tuple[PacketType, ...]") -> str:
    return ", ".join(names) or "nothing"
