"""Consistency checks across the parts of a contract file; every gap is reported with its place."""

from collections.abc import Iterable, Iterator, Mapping

from apc_contracts.contract.coordinators import STOP, TERMS
from apc_contracts.contract.file import ContractFile, FactScope, FactType, MachineDeclaration
from apc_contracts.errors import ContractInvalid
from apc_contracts.vocabulary import CONTROL_TYPES, PROTOCOL_1_1, PROTOCOL_VERSIONS, PacketType, RunPhase

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
    order = REFUSAL_ORDER if PROTOCOL_1_1 not in file.speaks else REFUSAL_ORDER_1_1
    if file.refusals.order != order:
        raise ContractInvalid("refusals.order", f"the rules stand in this order: {' '.join(order)}")
    _refuse_unknown([file.refusals.last_without_id], order, "refusals.last_without_id")
    _refuse_unknown(file.refusals.deferred, order, "refusals.deferred")
    _refuse_unknown(file.effectiveness.counted_refusals, order, "effectiveness.counted_refusals")


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
