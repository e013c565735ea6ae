"""Registered JSON Schemas (2020-12) of typed content: what one may contain, and whether content fits it.

Judging content is local, linear and the same forever. A `$ref` names a definition of the same document. References may
be recursive where each turn descends into the content (`properties`, `items`, …). How often one place of the content is
checked is bounded: else a small schema could make a small message cost minutes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from hashlib import sha256
from typing import Any, NoReturn

from apc_contracts.errors import PacketRefused, SchemaUnusable
from apc_contracts.wire.canonical import canonical_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SUBSCHEMAS = 2_000
MAX_CHECKS_OF_A_PLACE = 256
"""Subschemas that judge one place of the content."""
LEVELS_LOOKED_AT = 64
"""Content is never deeper: a packet has at most 32 levels by default."""
_MOST_PLACES = 1 << 17
"""Values in a packet of 256 KiB."""
_MOST_TEXT = 1 << 18

MAX_UNITS = 800_000
"""For one content, in units of ten nanoseconds: see `Weight`. Naming the place of a fault may take as much again."""
_MOST_ONCE = MAX_UNITS // 2
"""Of what is charged once for each content: the rest is for its values."""
_FEW_PLACES = 1_000
_LEAST_VALUES = 300
"""A schema that could judge only smaller contents in time is refused."""

_LOCAL = re.compile(r"#(?:/(\$defs|definitions)/([^/~%]+))?")
_FOREIGN = frozenset("$id $anchor $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $vocabulary".split())
_SAME_PLACE = frozenset({"not", "if", "then", "else"})
_SAME_PLACE_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_ANY_PLACE = frozenset(
    "additionalProperties unevaluatedProperties propertyNames items contains unevaluatedItems".split()
)
_ALTERNATIVES = frozenset({"anyOf", "oneOf"})
_NO_ALTERNATIVE = {
    "anyOf": "this value is not valid under any of the schemas listed in the 'anyOf' keyword",
    "oneOf": "this value is not valid under exactly one of the schemas listed in the 'oneOf' keyword",
}
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
FIELD_ORDER = "x-order"
"""The names of an object's fields in the order in which they were written: canonical JSON keeps no order."""
TITLE_MARK = "x-title"
"""true at the field that names a content for people, such as the order of a refund."""
_ANNOTATIONS = frozenset({"title", "description", "examples", FIELD_ORDER, TITLE_MARK})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default"})


@dataclass(frozen=True, slots=True)
class Weight:
    """What judging costs at most, in units of ten nanoseconds: for each value, float, extreme float and byte of text.

    An extreme float is near zero or has more than fifteen digits: the engine computes with all digits of it. What is
    judged at few places alone, however large the content, costs `once`.
    """

    values: float = 0
    floats: float = 0
    extremes: float = 0
    text: float = 0
    once: float = 0

    def __add__(self, other: "Weight") -> "Weight":
        return Weight(
            self.values + other.values,
            self.floats + other.floats,
            self.extremes + other.extremes,
            self.text + other.text,
            self.once + other.once,
        )

    def times(self, factor: int) -> "Weight":
        """Return the weight of so many checks."""
        parts = (self.values, self.floats, self.extremes, self.text, self.once)
        return Weight(*(part * factor for part in parts))

    def most(self, other: "Weight") -> "Weight":
        """Return what is heavier, of each part."""
        return Weight(
            max(self.values, other.values),
            max(self.floats, other.floats),
            max(self.extremes, other.extremes),
            max(self.text, other.text),
            max(self.once, other.once),
        )

    @property
    def of_a_value(self) -> float:
        """What one value costs at most, its text aside."""
        return self.values + self.floats + self.extremes


def units_of(content: Mapping[str, Any], weight: Weight) -> float:
    """Return what judging the content costs at most, in units of ten nanoseconds; stops above MAX_UNITS."""
    most = weight.of_a_value * _MOST_PLACES + weight.text * _MOST_TEXT + weight.once
    if most <= MAX_UNITS:
        return most
    pending: list[Any] = [content]
    values, text, floats, extremes = weight.values, weight.text, weight.floats, weight.extremes
    units = weight.once + values
    for value in pending:
        kind = type(value)
        if kind is str:
            units += text * len(value)
        elif kind is float:
            units += floats + (extremes if _is_extreme(value) else 0)
        elif kind is list:
            units += values * len(value)
            pending += value
        elif kind is dict:
            units += values * len(value) + text * sum(map(len, value))
            pending += value.values()
        if units > MAX_UNITS:
            break
    return units


@dataclass(slots=True)
class _Subschema:
    """One subschema: which others judge the same place, and which judge the places inside."""

    path: str
    same: list[int] = field(default_factory=list)
    anywhere: list[int] = field(default_factory=list)
    named: list[tuple[str, int]] = field(default_factory=list)
    most: dict[int, int] = field(default_factory=dict)
    """Of those in `anywhere`: how many places of one value each may judge."""
    weight: Weight = field(default_factory=Weight)
    """Of judging the place itself."""
    is_repeated: bool = False
    within: Weight = field(default_factory=Weight)
    """Of what it does with each value inside, beside what its subschemas do."""
    compares_items: bool = False


def check_document(document: Any) -> None:
    """Check a schema document.

    Raises:
        SchemaUnusable: what is wrong, and where.
    """
    if not isinstance(document, dict):
        raise SchemaUnusable("$", "a schema is a JSON object: give one with type, properties, …")
    if document.get("$schema", DIALECT) != DIALECT:
        raise SchemaUnusable("$schema", f"only JSON Schema 2020-12 is read: leave $schema out, or write {DIALECT}")
    weight, nodes = _weight_of_document(document)
    if weight.values * _LEAST_VALUES + weight.once > MAX_UNITS:
        worst = max(nodes, key=lambda node: node.weight.values + node.within.values)
        message = (
            "this is judged at many places, and is too dear there: give the list above it a smaller maxItems (or "
            "maxProperties), use fewer alternatives, bounds and patterns, and whole numbers and texts in them"
        )
        raise SchemaUnusable(worst.path, message)


def _weight_of_document(document: Mapping[str, Any]) -> "tuple[Weight, list[_Subschema]]":
    """Return what judging by a schema costs at most, and its subschemas with what each value costs there."""
    nodes = _SubschemaReader(dict(document)).nodes
    order = _order(nodes)
    _check_number(nodes, order)
    once = _charge_once(nodes, _places(nodes, order))
    return _worst_weight(nodes, order) + Weight(once=once), nodes


def identity_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without its annotations, such as title and description: they may change under one version."""
    kept: dict[str, Any] = {}
    for key, value in document.items():
        if key in _ANNOTATIONS:
            continue
        if key in _MAPS and isinstance(value, dict):
            kept[key] = {name: _stripped(one) for name, one in value.items()}
        else:
            kept[key] = value if key in _VALUES else _stripped(value)
    return kept


def _stripped(value: Any) -> Any:
    if isinstance(value, dict):
        return identity_of(value)
    return [_stripped(one) for one in value] if isinstance(value, list) else value


class _SubschemaReader:
    """Reads a document into nodes; the first node is the document itself."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.nodes: list[_Subschema] = []
        self._references: list[tuple[_Subschema, str]] = []
        self._definitions: dict[tuple[str, str], int] = {}
        pending: list[tuple[int, dict[str, Any]]] = [(self._add("$"), document)]
        self._weigh(self.nodes[0], document)
        for number, schema in pending:
            for slot, step, path, inner in self._inner(self.nodes[number], schema):
                if not isinstance(inner, dict):
                    continue  # true and false judge nothing further
                target = self._add(path)
                self._weigh(self.nodes[target], inner)
                pending.append((target, inner))
                if slot == "anywhere":
                    is_of_items = path.removeprefix(f"{self.nodes[number].path}.") in _ITEMS
                    bound = schema.get("maxItems" if is_of_items else "maxProperties")
                    if not isinstance(bound, int) or isinstance(bound, bool):
                        bound = _MOST_PLACES
                    self.nodes[number].most[target] = min(bound, _MOST_PLACES)
                if slot == "define":
                    self._definitions.setdefault((step, path.rpartition(".")[2]), target)
                elif slot == "named":
                    self.nodes[number].named.append((step, target))
                else:
                    getattr(self.nodes[number], slot).append(target)
        for node, reference in self._references:
            node.same.append(self._resolved(node, reference))
        for node in self.nodes:
            # To know what was evaluated, the engine judges the same place again.
            node.same *= 3 if node.is_repeated else 1
        self._weigh_nested_comparisons()

    @staticmethod
    def _weigh(node: _Subschema, schema: dict[str, Any]) -> None:
        node.weight, node.within = _weight_of(schema), _weight_within(schema)
        node.is_repeated = not _UNEVALUATED.isdisjoint(schema)
        node.compares_items = schema.get("uniqueItems") is True and not _are_texts(schema.get("items"))

    def _weigh_nested_comparisons(self) -> None:
        """Charge `uniqueItems` around `uniqueItems` for each level at which the innermost items are compared."""
        around: list[list[int]] = [[] for _ in self.nodes]
        for at, node in enumerate(self.nodes):
            for target in (*node.same, *node.anywhere, *(target for _, target in node.named)):
                around[target].append(at)
        pending = [at for at, node in enumerate(self.nodes) if node.compares_items]
        outer: set[int] = set()
        for at in pending:
            pending += (found := set(around[at]) - outer)
            outer |= found
        for node in (self.nodes[at] for at in outer):
            node.within = node.within.times(_LEVELS_OF_ITEMS) if node.compares_items else node.within

    def _add(self, path: str) -> int:
        if len(self.nodes) >= MAX_SUBSCHEMAS:
            raise SchemaUnusable(path, f"more than {MAX_SUBSCHEMAS} subschemas: split the message")
        self.nodes.append(_Subschema(path))
        return len(self.nodes) - 1

    def _inner(self, node: _Subschema, schema: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
        """Yield where each subschema judges, by which step, its path, and the subschema."""
        for key, value in schema.items():
            path = f"{node.path}.{key}"
            if key in _FOREIGN:
                raise SchemaUnusable(path, f"{key} is not used here: name definitions in $defs and refer to them")
            if key == "$ref":
                self._references.append((node, value))
            elif key in _SAME_PLACE:
                yield "same", "", path, value
            elif key in _ANY_PLACE:
                yield "anywhere", "", path, value
            elif key in _SAME_PLACE_LISTS and isinstance(value, list):
                yield from (("same", "", f"{path}[{index}]", one) for index, one in enumerate(value))
            elif key == "prefixItems" and isinstance(value, list):
                yield from (("named", f"[{index}]", f"{path}[{index}]", one) for index, one in enumerate(value))
            elif key in _MAPS and isinstance(value, dict):
                yield from _inner_of_map(key, path, value)

    def _resolved(self, node: _Subschema, reference: Any) -> int:
        local = _LOCAL.fullmatch(reference) if isinstance(reference, str) else None
        if local is None:
            message = "refer to a definition of this document, like #/$defs/Name: nothing is fetched"
            raise SchemaUnusable(f"{node.path}.$ref", message)
        where, name = local.groups()
        if where is None:
            return 0
        if (where, name) not in self._definitions:
            raise SchemaUnusable(f"{node.path}.$ref", f"there is no definition {name!r}: add it to {where}")
        return self._definitions[where, name]


def _inner_of_map(key: str, path: str, value: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    for name, one in value.items():
        if key in ("$defs", "definitions"):
            # Only the document's own definitions can be referred to.
            yield "define", key if path == f"$.{key}" else f"{path}:", f"{path}.{name}", one
        elif key == "properties":
            yield "named", name, f"{path}.{name}", one
        else:
            yield ("same" if key == "dependentSchemas" else "anywhere"), "", f"{path}.{name}", one


def _order(nodes: list[_Subschema]) -> list[int]:
    """Return the nodes so that each comes before those that judge the same place because of it."""
    try:
        return list(TopologicalSorter({at: node.same for at, node in enumerate(nodes)}).static_order())[::-1]
    except CycleError as error:
        path = nodes[error.args[1][0]].path
        raise SchemaUnusable(path, "a $ref leads back to itself without descending into the content") from error


def _check_number(nodes: list[_Subschema], order: list[int]) -> None:
    """Bound how many subschemas judge one place, level by level; of all places of a level the worst one counts."""
    for checks in _levels(nodes, order):
        if checks.total() > MAX_CHECKS_OF_A_PLACE:
            worst = nodes[max(checks, key=lambda at: checks[at])].path
            message = f"one place of the content would be judged by more than {MAX_CHECKS_OF_A_PLACE} subschemas"
            raise SchemaUnusable(worst, f"{message}: let alternatives differ in the names of their recursive fields")


def _levels(nodes: list[_Subschema], order: list[int]) -> Iterator[Counter[int]]:
    """Yield how often each subschema judges the worst place of a level, from the content itself on."""
    checks: Counter[int] = Counter({0: 1})
    seen: set[tuple[tuple[int, int], ...]] = set()
    for _ in range(LEVELS_LOOKED_AT):
        _add_same(nodes, order, checks)
        yield checks
        fingerprint = tuple(sorted(checks.items()))
        if fingerprint in seen or not checks:
            return
        seen.add(fingerprint)
        checks = _inside(nodes, checks)


def _add_same(nodes: list[_Subschema], order: list[int], checks: Counter[int]) -> None:
    """Add the subschemas that judge the same places because of others."""
    for at in order:
        if at in checks:
            for target in nodes[at].same:
                checks[target] = min(checks[target] + checks[at], _COUNTED)


_COUNTED = 1 << 40
"""So many are as good as more."""


def _places(nodes: list[_Subschema], order: list[int]) -> list[int]:
    """Return how many places of a content each subschema may judge, as often as it judges them."""
    found = [0] * len(nodes)
    level: Counter[int] = Counter({0: 1})
    for _ in range(LEVELS_LOOKED_AT):
        _add_same(nodes, order, level)
        inside: Counter[int] = Counter()
        for at, times in level.items():
            found[at] = min(found[at] + times, _COUNTED)
            for target in nodes[at].anywhere:
                inside[target] = min(inside[target] + times * nodes[at].most[target], _COUNTED)
            for _, target in nodes[at].named:
                inside[target] = min(inside[target] + times, _COUNTED)
        level = inside
    return found


def _charge_once(nodes: list[_Subschema], places: list[int]) -> float:
    """Return what is charged once for each content, and take it from the weights of its subschemas.

    First those that cost little at all their places, whatever stands there; then of others what each value costs there.
    """
    once = 0.0
    for is_whole in (True, False):
        charges = [
            (places[at] * (node.weight.of_a_value if is_whole else node.weight.values), at)
            for at, node in enumerate(nodes)
            if places[at] <= _FEW_PLACES
        ]
        for charge, at in sorted(charges):
            if once + charge > _MOST_ONCE:
                break
            once += charge
            weight = nodes[at].weight
            nodes[at].weight = Weight(text=weight.text) if is_whole else replace(weight, values=0)
    return once


def _worst_weight(nodes: list[_Subschema], order: list[int]) -> Weight:
    """Return what judging a value costs at the worst place."""
    closed = _closed(nodes, order)
    worst = closed[0]
    for checks in _levels(nodes, order):
        worst = worst.most(_weight_inside(nodes, checks, closed))
    return worst


def _closed(nodes: list[_Subschema], order: list[int]) -> list[Weight]:
    """Return the weight of each node together with those that judge the same place because of it."""
    closed = [Weight()] * len(nodes)
    for at in reversed(order):
        closed[at] = sum((closed[target] for target in nodes[at].same), nodes[at].weight)
    return closed


def _weight_inside(nodes: list[_Subschema], checks: Counter[int], closed: list[Weight]) -> Weight:
    """Return the weight of the worst place inside."""
    anywhere, steps = Weight(), defaultdict[str, Weight](Weight)
    for at, times in checks.items():
        anywhere += sum((closed[target] for target in nodes[at].anywhere), nodes[at].within).times(times)
        for step, target in nodes[at].named:
            steps[step] += closed[target].times(times)
    worst = Weight()
    for weight in steps.values():
        worst = worst.most(weight)
    return anywhere + worst


def _inside(nodes: list[_Subschema], checks: Counter[int]) -> Counter[int]:
    """Return how often each node judges one place inside, at most."""
    anywhere: Counter[int] = Counter()
    named: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for at, times in checks.items():
        for target in nodes[at].anywhere:
            anywhere[target] += times
        for step, target in nodes[at].named:
            named[target][step] += times
    for target, steps in named.items():
        anywhere[target] += max(steps.values())
    return anywhere


_ITEMS = frozenset({"items", "contains", "unevaluatedItems", "additionalItems"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_FEW_DIGITS = 8
_LEVELS_OF_ITEMS = 4
"""Fifteen items that are alike, of fifteen that are alike, and so on: a packet has room for so many levels."""


def _is_extreme(number: float) -> bool:
    return not (number == 0 or 1e-9 < abs(number) < 1e15)


def _plain_bound(bound: Any) -> Any:
    """Return a whole number as one: the engine compares with it a hundred times faster than with a float."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() and not _is_extreme(bound) else bound


def _weight_of(schema: Mapping[str, Any]) -> Weight:
    """Return what a subschema does to a place that it judges, without the subschemas in it."""
    weight = Weight(values=1 + len(schema))
    for key in _BOUNDS & schema.keys():
        weight += _weight_of_multiple(schema[key]) if key == "multipleOf" else _weight_of_bound(schema[key])
    if "const" in schema:
        weight += Weight(values=19) + _weight_of_comparison(schema["const"])
    if isinstance(values := schema.get("enum"), list):
        weight += _weight_of_enum(values)
    if isinstance(pattern := schema.get("pattern"), str):
        weight += Weight(values=10, text=_text_weight(pattern))
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        if isinstance(schema.get(key), dict):
            weight += Weight(values=3 * len(schema[key]))
    return weight


def _weight_of_bound(bound: Any) -> Weight:
    return Weight(2, 4, 220) if isinstance(_plain_bound(bound), int) else Weight(50, 400, 3_500)


def _weight_of_multiple(multiple: Any) -> Weight:
    """Return what `multipleOf` costs: of what is no whole number, the engine makes fractions with all digits."""
    plain = _plain_bound(multiple)
    if isinstance(plain, int):
        return Weight(5, 150, 600)
    if not isinstance(plain, float) or plain.is_integer():
        return Weight(50, 150, 600)
    if _is_extreme(plain):
        return Weight(3_200, 500, 4_500)
    return Weight(150 if len(repr(plain)) <= _FEW_DIGITS else 400, 600, 6_000)


def _weight_of_enum(values: list[Any]) -> Weight:
    """Return what `enum` costs: where all are texts, or all whole numbers, those are looked up."""
    if all(isinstance(value, str) for value in values):
        return Weight()
    weight = sum((_weight_of_comparison(value) for value in values), Weight())
    return replace(weight, values=0) if all(type(value) is int for value in values) else weight


def _weight_of_comparison(value: Any) -> Weight:
    """Return what comparing a value of the content with one of `const` or `enum` costs.

    Each number in a list or object may meet an extreme float, at each place.
    """
    if isinstance(value, dict | list):
        inner = list(value.values()) if isinstance(value, dict) else value
        parts = Weight(values=(15 if isinstance(value, dict) else 2))
        for one in inner:
            parts += _weight_of_comparison(one)
        return Weight(values=parts.of_a_value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Weight(values=3)
    if isinstance(value, int):
        return Weight(3, 450, 3_600)
    if _is_extreme(value):
        return Weight(3_600, 500, 2_700)
    return Weight(200 if len(repr(value)) <= _FEW_DIGITS else 400, 500, 3_500)


def _weight_within(schema: Mapping[str, Any]) -> Weight:
    """Return what a subschema does with each value inside the place: keys are matched, items compared."""
    weight = Weight(values=1)
    if "required" in schema:
        weight += Weight(values=2)
    if schema.get("uniqueItems") is True:
        # Up to fifteen items are compared each with each.
        weight += Weight(25) if _are_texts(schema.get("items")) else Weight(110, 4_200, 34_000)
    if "contains" in schema:
        weight += Weight(values=32)
    for pattern in schema.get("patternProperties", ()) if isinstance(schema.get("patternProperties"), dict) else ():
        weight += Weight(values=10, text=_text_weight(pattern))
    return weight


def _are_texts(items: Any) -> bool:
    """Return whether a schema of items allows texts alone."""
    if not isinstance(items, dict):
        return False
    values = items.get("enum")
    return items.get("type") == "string" or (
        isinstance(values, list) and all(isinstance(value, str) for value in values)
    )


_REPETITION = re.compile(r"\{(\d+)(?:,(\d*))?\}")


def _text_weight(pattern: str) -> float:
    """Return what a pattern costs for each byte of text, in units: the engine keeps all places of it in mind."""
    counts = [max(int(least), int(most or 0)) for least, most in _REPETITION.findall(pattern)]
    is_open = any(sign in pattern for sign in "*+|") or ",}" in pattern or not pattern.startswith("^")
    if not is_open:
        return 0.5  # It ends where the pattern ends.
    size = len(pattern)
    for count in counts:
        size *= max(count, 1)
    return 0.5 * min(size, MAX_PATTERN_BYTES)


MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMAS = 4_096
"""In a registry: the orchestrator keeps all of them."""
MAX_PATTERN_BYTES = 64 * 1024
"""Of a compiled pattern. The engine is linear; patterns that need backtracking are refused."""
_LONGEST_MESSAGE = 200


@dataclass(frozen=True, slots=True)
class ContentFault:
    """Why content fits no schema: the path in the packet, and the schema's hash ("" = there is no such schema)."""

    path: str
    message: str
    schema_hash: str


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema under its name and version. `hash` is the SHA-256 of its identity, annotations aside, in JCS form."""

    schema_id: str
    document: Mapping[str, Any] = field(repr=False)
    hash: bytes

    @cached_property
    def _blunt_document(self) -> dict[str, Any] | None:
        """The schema that finds the place of a fault; None = it would find places that are none."""
        if not _has_any(self.document, _ALTERNATIVES):
            return dict(self.document)
        return None if _has_any(self.document, _UNEVALUATED) else _blunt(self.document)

    @cached_property
    def _validator(self) -> Any:
        return compiled(dict(self.document) if self._blunt_document is None else self._blunt_document)

    @cached_property
    def weight(self) -> Weight:
        """What judging costs at most; of a schema that an older release took, too."""
        try:
            return _weight_of_document(self.document)[0]
        except SchemaUnusable:
            return Weight(values=MAX_UNITS // _LEAST_VALUES)

    @cached_property
    def _message_weight(self) -> Weight:
        """What finding the place of a fault costs: the content is judged again, and its value and the rule copied."""
        copied = Weight(values=130, text=0.2, once=8 * len(canonical_json(self.document)))
        return self.weight + copied

    def fault(self, content: Mapping[str, Any], path: str) -> ContentFault | None:
        """Return the first place where the content does not fit; `path` is the content's own in the packet.

        Content that would take too long to judge does not fit either. Where it would take too long to find the place,
        it is the whole content.

        Looks no further: a packet of 256 KiB may have a hundred thousand faults, which would take seconds to name.
        """
        if units_of(content, self.weight) > MAX_UNITS:
            message = (
                "has too many values, or too much text, for the checks of its schema: send it in parts or as an "
                "artifact, or register a schema with fewer alternatives, bounds and patterns at one place"
            )
            return ContentFault(path, f"{message} ({self.schema_id})", self.hash.hex())
        if self._validator.is_valid(content):
            return None
        is_told = self._blunt_document is not None and units_of(content, self._message_weight) <= MAX_UNITS
        error = _first_error(self._validator, content) if is_told else None
        if error is None:
            message = f"this value does not fit its schema ({self.schema_id})"
            return ContentFault(path, message, self.hash.hex())
        message = self._said_of_all(error, content) or error.message
        for part in error.instance_path:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        return ContentFault(path, f"{message[:_LONGEST_MESSAGE]} ({self.schema_id})", self.hash.hex())

    def _said_of_all(self, error: Any, content: Any) -> str | None:
        """Return the message about all alternatives, or all unexpected properties: the validator stops at the first."""
        *place, keyword = error.schema_path
        if keyword not in ("additionalProperties", "not"):
            return None
        schema: Any = self._blunt_document
        is_keyword = True
        for step in place:
            schema = schema[step]
            is_keyword = not (is_keyword and step in _MAPS)  # else what follows is a name, as of a property
        if not is_keyword:
            return None
        if keyword == "not":
            # So `_blunt` writes alternatives.
            inner = schema["not"].get("not") if isinstance(schema["not"], dict) and place[-2:-1] == ["allOf"] else None
            one = next((key for key in inner if key in _ALTERNATIVES), None) if isinstance(inner, dict) else None
            return _NO_ALTERNATIVE[one] if one else None
        for part in error.instance_path:
            content = content[part]
        return _said_of_unexpected(schema, content)


def _said_of_unexpected(schema: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    """Return which properties of an object its closed schema does not expect: as many as the message has room for."""
    unmatched = _unmatched(tuple(schema.get("patternProperties", ())))
    names: list[str] = []
    for name in sorted(content):
        if name in schema.get("properties", ()) or not unmatched.is_valid({name: True}):
            continue
        names.append(f"'{name[:_LONGEST_MESSAGE]}'")
        if len(names) * 4 > _LONGEST_MESSAGE:
            break
    were = "were" if len(names) > 1 else "was"
    return f"Additional properties are not allowed ({', '.join(names)} {were} unexpected)"


@lru_cache(256)
def _unmatched(patterns: tuple[str, ...]) -> Any:
    """Return what takes objects of whose names no pattern matches one."""
    return compiled({"patternProperties": dict.fromkeys(patterns, False)})


def register_schema(schema_id: str, document: Any) -> RegisteredSchema:
    """Return a schema that is safe to judge by, with the order of its fields as they are written in the document.

    Raises:
        SchemaUnusable: what is wrong with the document, and where.
    """
    check_document(document)
    compiled(document)
    schema, ordered = known_schema(schema_id, document), _with_order(document)
    fits = len(canonical_json(ordered)) <= MAX_SCHEMA_BYTES
    return replace(schema, document=ordered) if fits else schema


def _with_order(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with the order of the fields of every object that does not name one itself."""
    ordered: dict[str, Any] = {}
    for key, value in document.items():
        if key in _MAPS and isinstance(value, dict):
            ordered[key] = {name: _ordered(one) for name, one in value.items()}
        else:
            ordered[key] = value if key in _VALUES or key in _ANNOTATIONS else _ordered(value)
    if isinstance(fields := document.get("properties"), dict) and len(fields) > 1:
        ordered.setdefault(FIELD_ORDER, list(fields))
    return ordered


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return _with_order(value)
    return [_ordered(one) for one in value] if isinstance(value, list) else value


def known_schema(schema_id: str, document: Mapping[str, Any]) -> RegisteredSchema:
    """Return a schema that was checked when it was registered.

    Raises:
        SchemaUnusable: it is too large.
    """
    try:
        if len(canonical_json(document)) > MAX_SCHEMA_BYTES:
            raise SchemaUnusable("$", f"larger than {MAX_SCHEMA_BYTES} bytes: split the message")
        identity = canonical_json(identity_of(document))
    except (PacketRefused, RecursionError) as error:
        raise SchemaUnusable("$", f"no canonical JSON ({error}): send plain, finite JSON") from error
    return RegisteredSchema(schema_id, document, sha256(identity).digest())


def _blunt(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with alternatives that only say yes or no.

    To name the place, the validator would collect all faults of all alternatives, each with a copy of its value.
    """
    kept: dict[str, Any] = {}
    for key, value in document.items():
        if key in _MAPS and isinstance(value, dict):
            kept[key] = {name: _blunted(one) for name, one in value.items()}
        elif key in _ALTERNATIVES and isinstance(value, list):
            kept.setdefault("allOf", []).append({"not": {"not": {key: value}}})
        elif key == "allOf" and isinstance(value, list):
            kept["allOf"] = [*_blunted(value), *kept.get("allOf", ())]
        else:
            kept[key] = value if key in _VALUES else _blunted(value)
    return kept


def _blunted(value: Any) -> Any:
    if isinstance(value, dict):
        return _blunt(value)
    return [_blunted(one) for one in value] if isinstance(value, list) else value


def _has_any(schema: Any, keys: frozenset[str]) -> bool:
    if isinstance(schema, dict):
        return not keys.isdisjoint(schema) or any(_has_any(one, keys) for one in schema.values())
    return isinstance(schema, list) and any(_has_any(one, keys) for one in schema)


def _cheaper(document: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that says the same, for the engine.

    Bounds that are whole numbers are written as such. Items that must be texts are compared if they are texts: the
    engine compares first.
    """
    kept: dict[str, Any] = {}
    for key, value in document.items():
        if key in _MAPS and isinstance(value, dict):
            kept[key] = {name: _all_cheaper(one) for name, one in value.items()}
        elif key in _BOUNDS:
            kept[key] = _plain_bound(value)
        else:
            kept[key] = value if key in _VALUES else _all_cheaper(value)
    if kept.get("uniqueItems") is True and _are_texts(kept.get("items")) and isinstance(kept.get("allOf", []), list):
        compared = {"if": {"items": {"type": "string"}}, "then": {"uniqueItems": kept.pop("uniqueItems")}}
        kept["allOf"] = [*kept.get("allOf", ()), compared]
    return kept


def _all_cheaper(value: Any) -> Any:
    if isinstance(value, dict):
        return _cheaper(value)
    return [_all_cheaper(one) for one in value] if isinstance(value, list) else value


def _first_error(validator: Any, content: Mapping[str, Any]) -> Any:
    """Return the first fault, None where there is none."""
    import jsonschema_rs

    try:
        validator.validate(content)
    except jsonschema_rs.ValidationError as error:
        return error
    return None


def compiled(document: dict[str, Any], formats: dict[str, Callable[[str], bool]] | None = None) -> Any:
    """Return the engine that judges by a document; None = formats are not looked at. Raises SchemaUnusable."""
    # Slow to import, and needed by orchestrators and operators only.
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            _cheaper(document),
            validate_formats=formats is not None,
            formats=formats,
            retriever=_fetch_nothing,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=MAX_PATTERN_BYTES),
            mask="this value",
        )
    except (ValueError, jsonschema_rs.ValidationError) as error:
        place = ".".join(["$", *(str(part) for part in getattr(error, "instance_path", ()))])
        text = str(getattr(error, "message", error)).splitlines()[0][:_LONGEST_MESSAGE]
        if text.endswith('is not a "regex"'):
            text += ": write it without lookaround, backreferences and large repetitions"
        raise SchemaUnusable(place, text) from error


def _fetch_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched: name definitions in $defs")
