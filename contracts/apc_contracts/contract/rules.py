"""The rules of a team, compiled: which rules and counters are for a packet, and what they read.

`build_team` compiles the section `team` of a contract file, which `apc_contracts.contract.overlay` writes. What the
readings give is computed by `apc_contracts.admission.rules.team`. Source: docs/reference/rules.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apc_contracts.contract.comparisons import Give, comparison_of
from apc_contracts.contract.expressions import (
    MAX_COST,
    Expression,
    FieldType,
    Kind,
    Reading,
    Vocabulary,
    environment_of,
    is_true,
)
from apc_contracts.contract.file import ContractFile, CounterDeclaration, RuleDeclaration, RuleMode, Subject, TeamRules
from apc_contracts.errors import ContractInvalid
from apc_contracts.vocabulary import CONTROL_TYPES, PacketType

MAX_TEXT_OF_RULES = 32_768
"""Characters of all expressions: the gate compiles them between two packets."""
ONLY = "only"
"""The name of the rule that only the schemas of `only` may be sent."""
VALUES = "values"
"""The name of the rule that what rules read fits beside the verdict."""
COUNTER_KEYS = "counter-keys"
"""The name of the rule that a counter has room for another key."""
CLAIMED_TEXTS = "claimed-texts"
"""Refuses a packet whose rules read a text that is in the artifact store: the gate has only its hash."""
RESERVED = frozenset({ONLY, VALUES, COUNTER_KEYS, CLAIMED_TEXTS})
"""Names of the gate's own rules."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: a packet that it is for, and that meets `when`, must meet `require`."""

    name: str
    subjects: tuple[Subject, ...]
    when: Expression | None
    require: Expression
    say: str | None
    remedy: str | None
    mode: RuleMode
    reuse: bool

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What `require` reads."""
        return self.require.readings


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts packets, or adds their amounts, by a key."""

    name: str
    subjects: tuple[Subject, ...]
    when: Expression | None
    by: str
    """`session`, `sender`, `recipient` or `content.<field>`."""
    add: str | None
    """The path of the amount in the content; None = 1 for each packet."""
    within_ms: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Team:
    """The compiled section `team`. Compared by identity, so that its answers can be memoised."""

    file: TeamRules
    rules: tuple[Rule, ...]
    counters: tuple[Counter, ...]
    kept: Mapping[str, tuple[str, ...]]
    """Schema -> the fields that are remembered of its packets."""
    types: Mapping[str, Mapping[str, FieldType]]
    zone: ZoneInfo

    def counter(self, name: str) -> Counter:
        """Return the counter of this name."""
        return _counter(self, name)

    def plan_for(self, schema: str, packet_type: PacketType) -> "Plan":
        """Return the rules for such a packet, joined."""
        return _plan_for(self, schema, packet_type)

    def rules_for(self, schema: str, packet_type: PacketType) -> tuple[Rule, ...]:
        """Return the rules for such a packet in their order; `schema` is "" for one without typed content."""
        return _rules_for(self, schema, packet_type)

    def counters_for(self, schema: str, packet_type: PacketType) -> tuple[Counter, ...]:
        """Return the counters for such a packet."""
        return _counters_for(self, schema, packet_type)

    @property
    def expressions(self) -> Iterator[Expression]:
        """Every expression."""
        conditions = (*(rule.when for rule in self.rules), *(counter.when for counter in self.counters))
        yield from (when for when in conditions if when is not None)
        yield from (rule.require for rule in self.rules)

    @property
    def reads_local_time(self) -> bool:
        """Whether a rule reads `local.…`, which its zone decides."""
        return any(one.name.startswith("local.") for expression in self.expressions for one in expression.readings)

    def check(self) -> None:
        """Check names, and the types and costs of all expressions; imports CEL. Raises ContractInvalid."""
        for index, rule in enumerate(self.rules):
            if rule.name in RESERVED:
                message = f"the gate has a rule {rule.name} for every team: name it otherwise"
                raise ContractInvalid(f"team.rules[{index}].name", message)
        length = sum(len(expression.text) for expression in self.expressions)
        if length > MAX_TEXT_OF_RULES:
            message = (
                f"all expressions together have {length:,} characters, {MAX_TEXT_OF_RULES:,} are allowed: drop some"
            )
            raise ContractInvalid("team.rules", message)
        for expression in self.expressions:
            expression.check()
        if self.cost > MAX_COST:
            message = (
                f"a packet may cost {self.cost:,} steps by its rules together, {MAX_COST:,} are allowed: drop some, or "
                "give the texts and lists that they read a maxLength and maxItems in their schema"
            )
            raise ContractInvalid("team.rules", message)

    @property
    def cost(self) -> int:
        """The most steps that one packet may take, by all rules and counters for it (see `Expression.cost`)."""
        subjects = {subject for rule in self.rules for subject in rule.subjects}
        subjects |= {subject for counter in self.counters for subject in counter.subjects}
        return max(map(self._cost_of, subjects), default=0)

    def _cost_of(self, subject: Subject) -> int:
        """Return the most steps for a packet of this subject: of its schema, a DECISION if rules tell them apart."""
        schema = subject.schema_ or ""
        kinds = [subject.type] if subject.type is not None else [PacketType.MESSAGE, PacketType.DECISION]
        return max(self._cost_for(schema, kind) for kind in kinds)

    def _cost_for(self, schema: str, packet_type: PacketType) -> int:
        rules, counters = self.rules_for(schema, packet_type), self.counters_for(schema, packet_type)
        conditions = (*(rule.when for rule in rules), *(counter.when for counter in counters))
        return sum(when.cost for when in conditions if when is not None) + sum(rule.require.cost for rule in rules)


class Conjunction:
    """All rules of one packet at once: whether it keeps them all.

    Rules that are comparisons alone are judged here, the others in one expression: `(when) ? (require) : true` of each,
    joined. An error in one of them makes it false, as it does alone.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether every rule is kept; false too where they are too long or deep for one expression.

        Args:
            values: by the names of CEL (`Reading.variable`), of these rules alone.
        """
        comparisons, others = self._parts
        try:
            for is_kept in comparisons:
                if is_kept(values) is not True:
                    return False
        except (KeyError, TypeError, RecursionError):  # a value is missing: an error, which does not hold
            return False
        return not others or (self._program is not None and is_true(self._program, values))

    @cached_property
    def _parts(self) -> tuple[list[Give], list[Rule]]:
        """What judges the rules that are comparisons alone, and the others."""
        comparisons, others = list[Give](), list[Rule]()
        for rule in self._rules:
            found = comparison_of(rule.when, rule.require)
            if found is None:
                others.append(rule)
            else:
                comparisons.append(found)
        return comparisons, others

    @cached_property
    def _program(self) -> Any:
        variables: dict[str, Kind] = {}
        texts: list[str] = []
        for when, require in ((rule.when, rule.require) for rule in self._parts[1]):
            for expression in (when, require):
                if expression is not None:
                    variables.update(expression.cel[1])
            texts.append(f"({require.cel[0]})" if when is None else f"(({when.cel[0]}) ? ({require.cel[0]}) : true)")
        try:
            return environment_of(variables).compile(" && ".join(texts))
        except RuntimeError:
            return None


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The rules for packets of one kind: each, all in one expression, and what they read. Compared by identity."""

    rules: tuple[Rule, ...]
    whole: Conjunction
    readings: tuple[Reading, ...]
    """Each once."""

    def by_text(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values, which are given by the names of CEL, by the texts of the readings."""
        return {one.text: values[one.variable] for one in self.readings if one.variable in values}


@lru_cache(4096)
def _plan_for(team: Team, schema: str, packet_type: PacketType) -> Plan:
    rules = team.rules_for(schema, packet_type)
    expressions = [one for rule in rules for one in (rule.when, rule.require) if one is not None]
    readings = {reading.text: reading for expression in expressions for reading in expression.readings}
    return Plan(rules, Conjunction(rules), tuple(readings.values()))


@lru_cache(4096)
def _counter(team: Team, name: str) -> Counter:
    return next(counter for counter in team.counters if counter.name == name)


@lru_cache(4096)
def _rules_for(team: Team, schema: str, packet_type: PacketType) -> tuple[Rule, ...]:
    return tuple(rule for rule in team.rules if _is_for(rule.subjects, schema, packet_type))


@lru_cache(4096)
def _counters_for(team: Team, schema: str, packet_type: PacketType) -> tuple[Counter, ...]:
    return tuple(counter for counter in team.counters if _is_for(counter.subjects, schema, packet_type))


def _is_for(subjects: Iterable[Subject], schema: str, packet_type: PacketType) -> bool:
    """Return whether one of the subjects is this packet. Control packets without content must be named by type."""
    return any(
        (subject.schema_ is None or subject.schema_ == schema)
        and (subject.type is None or subject.type is packet_type)
        and (subject.type is not None or subject.schema_ is not None or packet_type not in CONTROL_TYPES)
        for subject in subjects
    )


def build_team(file: ContractFile) -> Team | None:
    """Return the compiled rules of a contract file; None without any. Raises ContractInvalid, with the place."""
    declared = file.team
    if declared is None:
        return None
    try:
        if declared.zone != "UTC" and "/" not in declared.zone:  # `localtime` is another one on each machine
            raise ValueError(declared.zone)
        zone = ZoneInfo(declared.zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        message = f"there is no time zone {declared.zone!r}: write one like Europe/Berlin"
        raise ContractInvalid("team.zone", message) from error
    _check_names(declared)
    return Team(
        file=declared,
        rules=tuple(_rule(declared, index, rule) for index, rule in enumerate(declared.rules)),
        counters=tuple(_compiled(declared, name, counter) for name, counter in declared.counters.items()),
        kept=dict(declared.keep),
        types=declared.types,
        zone=zone,
    )


def _check_names(declared: TeamRules) -> None:
    seen: set[str] = set()
    for index, rule in enumerate(declared.rules):
        place = f"team.rules[{index}]"
        if rule.name in seen:
            raise ContractInvalid(f"{place}.name", f"there is a rule {rule.name!r} already: name it otherwise")
        seen.add(rule.name)
        _check_subjects(declared, rule.for_, f"{place}.for")
    for schema, fields in declared.keep.items():
        for path in fields:
            kind = declared.types.get(schema, {}).get(path)
            if kind is None or kind.kind not in ("string", "number", "integer", "boolean"):
                message = f"{schema} has no text, number or truth value {path!r} to keep"
                raise ContractInvalid(f"team.keep.{schema}", message)


def _check_subjects(declared: TeamRules, subjects: Iterable[Subject], place: str) -> None:
    for subject in subjects:
        if subject.schema_ is None and subject.type is None:
            raise ContractInvalid(place, "name a schema, a type or both")
        if subject.schema_ is not None and declared.only is not None and subject.schema_ not in declared.only:
            raise ContractInvalid(place, f"{subject.schema_} is not in `only`: nobody may send it")


def _rule(declared: TeamRules, index: int, rule: RuleDeclaration) -> Rule:
    place, words = f"team.rules[{index}]", vocabulary(declared, rule.for_)
    when = None if rule.when is None else Expression(rule.when, f"{place}.when", words)
    # What `when` has asked for with has() is there when `require` reads it.
    require = Expression(rule.require, f"{place}.require", words, context=rule.when or "")
    return Rule(rule.name, rule.for_, when, require, rule.say, rule.remedy, rule.mode, rule.reuse)


def _compiled(declared: TeamRules, name: str, counter: CounterDeclaration) -> Counter:
    place = f"team.counters.{name}"
    _check_subjects(declared, counter.for_, f"{place}.for")
    words = vocabulary(declared, counter.for_, is_local=True)
    when = None if counter.when is None else Expression(counter.when, f"{place}.when", words)
    _check_path(words, counter.by, f"{place}.by", ("string", "number", "integer", "boolean"))
    if counter.add is not None:
        _check_path(words, counter.add, f"{place}.add", ("number", "integer"))
    return Counter(name, counter.for_, when, counter.by, counter.add, counter.within_ms)


def _check_path(words: Vocabulary, path: str, place: str, kinds: tuple[str, ...]) -> None:
    if not path.startswith("content."):
        return
    kind = words.content.get(path.removeprefix("content."))
    if kind is None or kind.kind not in kinds:
        wanted = "a number" if kinds == ("number", "integer") else "a text, number or truth value"
        raise ContractInvalid(place, f"{path} is not {wanted} of every schema in `for`")
    if kind.optional:
        raise ContractInvalid(place, f"{path} may be absent: make it a required field of its schema")


def vocabulary(declared: TeamRules, subjects: Iterable[Subject], *, is_local: bool = False) -> Vocabulary:
    """Return what expressions for these packets may name: the content fields that all their schemas have alike."""
    named = [subject.schema_ for subject in subjects]
    schemas = [schema for schema in named if schema is not None]
    shared: dict[str, FieldType] = dict(declared.types.get(schemas[0], {})) if schemas and None not in named else {}
    for schema in schemas[1:]:
        own = declared.types.get(schema, {})
        shared = {path: _wider(kind, own[path]) for path, kind in shared.items() if _is_alike(kind, own.get(path))}
    known = declared.only if declared.only is not None else None
    adds = {name: _kind_of_amount(declared, counter) for name, counter in declared.counters.items()}
    return Vocabulary(
        content=shared,
        schemas=known,
        kept=declared.keep,
        roles=declared.roles,
        counters=adds,
        has_content=bool(schemas) and None not in named,
        is_local=is_local,
    )


def _kind_of_amount(declared: TeamRules, counter: CounterDeclaration) -> Kind | None:
    """Return the type of what a counter adds: a whole number only where it is one in each schema."""
    if counter.add is None:
        return None
    path = counter.add.removeprefix("content.")
    found = (declared.types.get(subject.schema_ or "", {}).get(path) for subject in counter.for_)
    return "integer" if all(one is not None and one.kind == "integer" for one in found) else "number"


def _is_alike(first: FieldType, second: FieldType | None) -> bool:
    return second is not None and first.kind == second.kind


def _wider(first: FieldType, second: FieldType) -> FieldType:
    """Return a type that holds the values of both."""
    return FieldType(
        kind=first.kind,
        optional=first.optional or second.optional,
        length=max(first.length, second.length),
        items=max(first.items, second.items),
        fields=tuple(sorted({*first.fields, *second.fields})),
        values=tuple(sorted({*first.values, *second.values})) if first.values and second.values else (),
    )
