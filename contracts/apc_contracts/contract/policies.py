"""The parts of a contract that carry guards: machines, phase table, promotion gate, anti-drift checks."""

from dataclasses import dataclass

from apc_contracts.contract.contract_checks import edge_sources, fact_types
from apc_contracts.contract.file import ContractFile
from apc_contracts.contract.guards import Guard, conjunction, identifiers
from apc_contracts.contract.machine import Edge, Machine
from apc_contracts.contract.mermaid import Arrow
from apc_contracts.vocabulary import PacketType, RunPhase


@dataclass(frozen=True, slots=True)
class PhaseGuard:
    """What a phase requires of a TRANSFER; `code` and `path` are those of the refusal."""

    guard: Guard
    code: str
    path: str


@dataclass(frozen=True, slots=True)
class PhasePolicy:
    """One row of the phase table, control types included."""

    phase: RunPhase
    packet_types: frozenset[PacketType]
    transfer: PhaseGuard | None

    def allows(self, packet_type: PacketType) -> bool:
        """Return whether an agent may send this type in this phase."""
        return packet_type in self.packet_types


@dataclass(frozen=True, slots=True)
class PromotionGate:
    """The gate as one guard, and each criterion by the metric that it names."""

    criteria: tuple[tuple[str, Guard], ...]
    whole: Guard


@dataclass(frozen=True, slots=True)
class DriftRule:
    """One anti-drift check with its guard; `needs` names the source of its facts: packet, session, registry."""

    name: str
    path: str
    guard: Guard
    needs: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class DriftRules:
    """Some checks and their conjunction: one evaluation tells whether any of them failed.

    Compared by identity, so that results can be memoised cheaply.
    """

    rules: tuple[DriftRule, ...]
    whole: Guard


@dataclass(frozen=True, slots=True)
class DriftChecks:
    """The enabled checks, by mode.

    Of the enforced ones, `at_barrier` need no registry (it is not consulted again there), `offline` need only the
    packet.
    """

    enforced: DriftRules
    warned: DriftRules
    at_barrier: DriftRules
    offline: DriftRules


def build_machine(file: ContractFile, name: str, gate: Guard) -> Machine:
    """Return the machine of that name; an edge with `gate` gets the promotion gate as its guard."""
    declared = file.machines[name]
    types = fact_types(file, "machine")
    edges: list[Edge] = []
    arrows: list[Arrow] = []
    for index, edge in enumerate(declared.edges):
        guard = gate if edge.gate else None
        if edge.guard is not None:
            guard = Guard(edge.guard, f"machines.{name}.edges[{index}].guard", types)
        edges += [Edge(source, edge.event, edge.to, guard) for source in edge_sources(declared, index)]
        label = "promotion gate" if edge.gate else edge.guard
        arrows += [Arrow(source, edge.event, edge.to, label) for source in edge.sources]
    terminal = frozenset(declared.terminal)
    return Machine(name, declared.states, declared.initial, terminal, tuple(edges), tuple(arrows))


def build_policy(file: ContractFile, phase: RunPhase) -> PhasePolicy:
    """Return the row of the phase table."""
    row = file.phases[phase]
    transfer = None
    if row.transfer is not None:
        guard = Guard(row.transfer.guard, f"phases.{phase}.transfer.guard", fact_types(file, "transfer"))
        transfer = PhaseGuard(guard, row.transfer.code, row.transfer.path)
    return PhasePolicy(phase, frozenset(row.packet_types) | frozenset(file.control_types), transfer)


def build_promotion_gate(file: ContractFile) -> PromotionGate:
    """Return the promotion gate."""
    types = fact_types(file, "promotion")
    criteria = tuple(
        (criterion.metric, Guard(criterion.guard, f"promotion_gate[{index}].guard", types))
        for index, criterion in enumerate(file.promotion_gate)
    )
    return PromotionGate(criteria, conjunction([guard for _, guard in criteria], "promotion_gate", types))


def build_drift_checks(file: ContractFile) -> DriftChecks:
    """Return the anti-drift checks that are not off."""
    enforced = [_drift_rule(file, index) for index in _checks_in_mode(file, "enforce")]
    warned = [_drift_rule(file, index) for index in _checks_in_mode(file, "warn")]
    return DriftChecks(
        enforced=_drift_rules(file, enforced),
        warned=_drift_rules(file, warned),
        at_barrier=_drift_rules(file, [rule for rule in enforced if "registry" not in rule.needs]),
        offline=_drift_rules(file, [rule for rule in enforced if rule.needs <= {"packet"}]),
    )


def _checks_in_mode(file: ContractFile, mode: str) -> list[int]:
    return [index for index, check in enumerate(file.drift_checks) if check.mode == mode]


def _drift_rules(file: ContractFile, rules: list[DriftRule]) -> DriftRules:
    whole = conjunction([rule.guard for rule in rules], "drift_checks", fact_types(file, "drift"))
    return DriftRules(tuple(rules), whole)


def _drift_rule(file: ContractFile, index: int) -> DriftRule:
    check = file.drift_checks[index]
    guard = Guard(check.guard, f"drift_checks[{index}].guard", fact_types(file, "drift"))
    needs = frozenset(fact.needs for fact in file.facts if fact.name in identifiers(check.guard))
    return DriftRule(check.name, check.path, guard, needs)
