"""Guards, and what carries them: machines, phase table, promotion gate, anti-drift checks.

A guard is a CEL predicate over a flat map of named facts (docs/specification/contract.md section 13). `import cel`
takes 0.2 to 0.5 seconds, so it happens at the first evaluation or check, never at import. A guard is a pure function of
the facts that it names: its results are memoised by their values, which turns the microseconds of CEL into a dictionary
lookup on the hot path.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from apc_contracts.contract.file import ContractFile, FactType, edge_sources, fact_types, how_to_declare
from apc_contracts.errors import ContractInvalid, TransitionRefused
from apc_contracts.vocabulary import PacketType, RunPhase

FactValue = float | bool | str
Facts = Mapping[str, Any]

_CACHED_ANSWERS = 4096
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*'")
_MACROS = "all exists exists_one existsOne map filter".split()
_CALL = re.compile(r"\.\s*([A-Za-z_]\w*)\s*\(")
_MACRO = re.compile(rf"\.\s*(?:{'|'.join(_MACROS)})\s*\([\s(]*([A-Za-z_]\w*)[\s)]*,")
# In a text whose strings are "": raw strings, three quotes, comments. CEL reads them otherwise than these patterns.
_UNREADABLE = re.compile(r"""//|\w""|"{3}|'""")
# Or an escape that may stand for the brace.
_COUNTED = re.compile(r"\{|\\[xXuU0-7]")
_PATTERN = re.compile(rf"\.\s*matches\s*\(\s*({_STRING.pattern})\s*\)")
_MOST_PATTERN_LETTERS = 128
"""Each costs some twenty microseconds where it stands for a class such as `\\w`."""
_MOST_STEPS = 10_000
"""Of macros and sums of a guard, of a tenth of a microsecond."""
_MOST_STEPS_TOGETHER = 100_000
_STEPS_OF_LETTER = 200
_STEPS_OF_SUM = 20
_WORD = re.compile(r"[A-Za-z_]\w*")
_TERM = re.compile(r"\w+|[^\w\s.,()]+")
_OPERATOR = re.compile(r"[^a-z]*|@\w+|_\?_:_")
_UNEVALUABLE = (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError)
_FUNCTIONS = frozenset({"size", "startsWith", "endsWith", "contains", "matches", "double", "int", "string", "bool"})
# Two samples per type, so that both sides of `||`, `&&` and `?:` are evaluated.
_SAMPLES: tuple[Mapping[FactType, FactValue], ...] = (
    {"float": 1.5, "bool": True, "string": "sample"},
    {"float": 0.5, "bool": False, "string": ""},
)


class Guard:
    """One predicate. `place` is its position in the contract file; `types` are the facts that it may name.

    `names` are the facts that it does name, sorted. `parts` is of how many guards a conjunction is made.
    """

    def __init__(self, text: str, place: str, types: Mapping[str, FactType], parts: int = 1) -> None:
        self.text = text
        self._parts = parts
        self.place = place
        self._types = types
        bound = macro_variables(text)
        # Read from the text, so that a memoised answer never needs CEL.
        self.names = tuple(sorted(name for name in identifiers(text) - bound if name in types))
        self._named = tuple((name, types[name]) for name in self.names)
        self._answer: Callable[[tuple[FactValue, ...]], bool] = lru_cache(_CACHED_ANSWERS)(self._evaluate)

    def holds(self, facts: Facts) -> bool:
        """Return whether the predicate is true. A fact that is missing or of the wrong type makes it false."""
        values = []
        for name, fact_type in self._named:
            value = _typed(facts.get(name), fact_type)
            if value is None:
                return False
            values.append(value)
        return self._answer(tuple(values))

    def holds_values(self, values: tuple[FactValue, ...]) -> bool:
        """Return `holds` for values already typed and in the order of `names`."""
        return self._answer(values)

    def check(self) -> None:
        """Compile the guard and check that it is usable.

        Raises:
            ContractInvalid: it does not compile, may run long, calls an unknown function, names an unknown fact, or
        cannot be evaluated to a boolean over facts of the declared types.
        """
        refuse_long_runs(self.text, self.place, self._parts)
        self._refuse_unknown_words()
        for sample in _SAMPLES:
            self._refuse_unusable(sample)

    @cached_property
    def _program(self) -> Any:
        import cel  # late: see the module's docstring

        try:
            return cel.compile(self.text)
        except ValueError as error:
            raise ContractInvalid(self.place, f"the guard does not compile: {_first_line(error)}") from error

    def _evaluate(self, values: tuple[FactValue, ...]) -> bool:
        try:
            return self._program.execute(dict(zip(self.names, values, strict=True))) is True
        except _UNEVALUABLE:
            # An expression that cannot be evaluated is not satisfied.
            return False

    def _refuse_unknown_words(self) -> None:
        for name in sorted(set(self._program.variables()) - macro_variables(self.text)):
            if name not in self._types:
                known = ", ".join(sorted(self._types))
                message = f"the guard names the unknown fact {name!r}; known here: {known}. {how_to_declare(name)}"
                raise ContractInvalid(self.place, message)
        for function in self._program.functions():
            if function not in _FUNCTIONS and not _OPERATOR.fullmatch(function):
                raise ContractInvalid(self.place, f"the guard calls the unknown function {function!r}")

    def _refuse_unusable(self, sample: Mapping[FactType, FactValue]) -> None:
        try:
            result = self._program.execute({name: sample[self._types[name]] for name in self.names})
        except _UNEVALUABLE as error:
            message = f"the guard cannot be evaluated (numbers are floats: write 2.0): {_first_line(error)}"
            raise ContractInvalid(self.place, message) from error
        if not isinstance(result, bool):
            raise ContractInvalid(self.place, f"the guard gives {type(result).__name__}, not a boolean")


def conjunction(guards: Iterable[Guard], place: str, types: Mapping[str, FactType]) -> Guard:
    """Return one guard that is true exactly when all of `guards` are; true for an empty list."""
    texts = [f"({guard.text})" for guard in guards]
    return Guard(" && ".join(texts) or "true", place, types, max(len(texts), 1))


def identifiers(text: str) -> frozenset[str]:
    """Return the words of an expression outside its string literals; fact names are among them."""
    return frozenset(_WORD.findall(_STRING.sub('""', text)))


def macro_variables(text: str) -> frozenset[str]:
    """Return the names that macros of the expression bind: they are not facts."""
    return frozenset(_MACRO.findall(_STRING.sub('""', text)))


def refuse_long_runs(text: str, place: str, parts: int = 1) -> None:
    """Refuse what may run for seconds or fill the memory in few characters: CEL has no cost limit.

    Raises:
        ContractInvalid: a string or a comment could hide such a part, a macro is inside the parentheses of another,
            `map` is called more than once in one of the `parts`, a pattern counts repetitions, is not written out or
            is used in a macro, or all patterns together are long: each is compiled at each evaluation.
    """
    bare = _STRING.sub('""', text)
    if _UNREADABLE.search(bare) or '"' in bare.replace('""', ""):
        message = "the guard has a comment, or a raw, byte or triple-quoted string: write plain strings, no comments"
        raise ContractInvalid(place, message)
    calls = _CALL.findall(bare)
    for name in calls:
        if name not in _MACROS and name not in _FUNCTIONS:
            raise ContractInvalid(place, f"the guard calls the unknown function {name!r}")
    _refuse_nested_macros(bare, place)
    # Each `map` may double what the one before it gave: twenty of them fill the memory.
    if calls.count("map") > parts:
        raise ContractInvalid(place, "the guard calls map twice; write it with one map")
    if "matches" in calls and _COUNTED.search(text):
        raise ContractInvalid(place, "the guard has matches and { or a coded character: write the repetition out")
    _refuse_dear_patterns(text, bare, place, parts)
    _refuse_many_turns(bare, place, parts)


def _refuse_many_turns(bare: str, place: str, parts: int) -> None:
    if parts > 1:
        return  # `refuse_dear_groups` bounds them together.
    if (steps := _turns(bare)) > _MOST_STEPS:
        message = f"macros and sums of the guard may take {steps:,} steps, {_MOST_STEPS:,} are allowed"
        raise ContractInvalid(place, f"{message}: write shorter lists, fewer conditions or sums")


def _turns(bare: str) -> int:
    """Return the steps of sums, whose texts grow, and of macros: each element costs as many as the guard has words."""
    calls, sums = _CALL.findall(bare), bare.count("+")
    steps: int = _STEPS_OF_SUM * sums**2
    if any(name in _MACROS for name in calls):
        elements = bare.count(",") + sums + 1
        steps += elements ** (2 if "map" in calls else 1) * len(_TERM.findall(bare)) * (1 + sums)
    return steps


def refuse_dear_groups(guards: Iterable[Guard], place: str) -> None:
    """Refuse guards that one packet meets together, if their macros and patterns may take more than ten milliseconds.

    Raises:
        ContractInvalid: they may.
    """
    steps = 0
    for guard in guards:
        letters = sum(map(len, _PATTERN.findall(guard.text)))
        steps += _turns(_STRING.sub('""', guard.text)) + _STEPS_OF_LETTER * letters
    if steps > _MOST_STEPS_TOGETHER:
        message = f"the guards may take {steps:,} steps together, {_MOST_STEPS_TOGETHER:,} are allowed"
        raise ContractInvalid(place, f"{message}: write fewer macros and shorter patterns")


def _refuse_dear_patterns(text: str, bare: str, place: str, parts: int) -> None:
    patterns = _PATTERN.findall(text)
    if len(patterns) < sum(name == "matches" for name in _CALL.findall(bare)):
        raise ContractInvalid(place, "the guard calls matches with something else than a text: write the pattern out")
    if sum(map(len, patterns)) > _MOST_PATTERN_LETTERS * parts:
        message = f"the patterns of the guard have more than {_MOST_PATTERN_LETTERS} characters: write shorter ones"
        raise ContractInvalid(place, message)


def _refuse_nested_macros(bare: str, place: str) -> None:
    starts = {match.end() - 1 for match in _CALL.finditer(bare) if match.group(1) in _MACROS}
    matching = {match.end() - 1 for match in _CALL.finditer(bare) if match.group(1) == "matches"}
    open_parentheses: list[bool] = []
    for position, character in enumerate(bare):
        if character == "(":
            if position in starts and any(open_parentheses):
                raise ContractInvalid(place, "the guard nests one macro in another; write it without nesting")
            if position in matching and any(open_parentheses):
                raise ContractInvalid(place, "the guard calls matches in a macro; use startsWith, endsWith or contains")
            open_parentheses.append(position in starts)
        elif character == ")" and open_parentheses:
            open_parentheses.pop()


def _typed(value: Any, fact_type: FactType) -> FactValue | None:
    """Return the value as the declared type, None when it is missing or of another type."""
    if fact_type == "float":
        # `+ 0.0` turns -0.0 into 0.0: equal keys of the memo must mean equal facts.
        return float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else None
    if fact_type == "bool":
        return value if isinstance(value, bool) else None
    return str(value) if isinstance(value, str) else None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


# State machines as Mermaid state diagrams.

ANY_STATE = "ANY"


class Arrow(NamedTuple):
    """One drawn transition; source `*` is any state."""

    source: str
    event: str
    target: str
    guard: str | None = None


def state_diagram(initial: str, terminal: Iterable[str], arrows: Iterable[Arrow]) -> str:
    """Return a `stateDiagram-v2`; transitions from `*` start at one state named "any state"."""
    drawn = list(arrows)
    lines = ["stateDiagram-v2"]
    if any(arrow.source == "*" for arrow in drawn):
        lines.append(f'    state "any state" as {ANY_STATE}')
    lines.append(f"    [*] --> {initial}")
    lines += [_line(arrow) for arrow in drawn]
    lines += [f"    {state} --> [*]" for state in terminal]
    return "\n".join(lines) + "\n"


def _line(arrow: Arrow) -> str:
    source = ANY_STATE if arrow.source == "*" else arrow.source
    # Mermaid ends a label at a semicolon and starts markup at a hash.
    guard = f" [{arrow.guard}]".replace("#", "").replace(";", ",") if arrow.guard else ""
    return f"    {source} --> {arrow.target} : {arrow.event}{guard}"


# State machines: a table of (state, event) and one small interpreter.

NO_FACTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Edge:
    """One transition of one state; a guard must hold for it to be taken."""

    source: str
    event: str
    target: str
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the contract file. `edges` are expanded: one for each (state, event)."""

    name: str
    states: tuple[str, ...]
    initial: str
    terminal: frozenset[str]
    edges: tuple[Edge, ...]
    arrows: tuple[Arrow, ...]
    """The edges as the file states them, `*` not expanded."""
    _table: Mapping[tuple[str, str], Edge] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = {(edge.source, edge.event): edge for edge in self.edges}
        object.__setattr__(self, "_table", MappingProxyType(table))

    def edge(self, state: str, event: str) -> Edge | None:
        """Return the transition of this event in this state, whatever its guard; None when it is illegal."""
        return self._table.get((state, event))

    def step(self, state: str, event: str, facts: Mapping[str, Any] = NO_FACTS) -> str:
        """Return the state after `event`.

        Raises:
            TransitionRefused: the event is illegal in this state, or its guard is false with these facts.
        """
        edge = self._table.get((state, event))
        if edge is None:
            raise TransitionRefused(self.name, state, event, self._why_illegal(state, event))
        if edge.guard is not None and not edge.guard.holds(facts):
            raise TransitionRefused(self.name, state, event, f"the guard [{edge.guard.text}] is false")
        return edge.target

    def walk(self, events: Iterable[str], facts: Mapping[str, Any] = NO_FACTS) -> tuple[str, ...]:
        """Return the states passed through, the initial one first; every step uses the same facts.

        Raises:
            TransitionRefused: at the first event that cannot be taken.
        """
        states = [self.initial]
        for event in events:
            states.append(self.step(states[-1], event, facts))
        return tuple(states)

    def events(self, state: str) -> tuple[str, ...]:
        """Return the events that have a transition in this state."""
        return tuple(edge.event for edge in self.edges if edge.source == state)

    def mermaid(self) -> str:
        """Return the machine as a Mermaid state diagram."""
        terminal = [state for state in self.states if state in self.terminal]
        return state_diagram(self.initial, terminal, self.arrows)

    def _why_illegal(self, state: str, event: str) -> str:
        if state not in self.states:
            return f"there is no state {state}"
        if not any(edge.event == event for edge in self.edges):
            return f"there is no event {event}"
        legal = ", ".join(self.events(state)) or "none"
        return f"the event is illegal here; legal: {legal}"


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
    """Return the promotion gate; a contract without criteria has one that always passes."""
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
