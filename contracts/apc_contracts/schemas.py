"""Registered JSON Schemas (2020-12) of typed content: what one may contain, and whether content fits it.

Judging content is local, linear and the same forever. A `$ref` names a definition of the same document. References may
be recursive where each turn descends into the content (`properties`, `items`, …). How often one place of the content is
checked is bounded: else a small schema could make a small message cost minutes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
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
_FRACTION = 80
_MOST_STEPS = 40_000
"""Twenty milliseconds."""

MAX_UNITS = 800_000
"""For one content, in units of ten nanoseconds: see `Weight`."""
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
_ANNOTATIONS = frozenset({"title", "description", "examples"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default"})


@dataclass(frozen=True, slots=True)
class Weight:
    """What judging costs at most, in units of ten nanoseconds: for each value, float, extreme float and byte of text.

    An extreme float is near zero or has more than fifteen digits: the engine computes with all digits of it.
    """

    values: float = 0
    floats: float = 0
    extremes: float = 0
    text: float = 0

    def __add__(self, other: "Weight") -> "Weight":
        return Weight(
            self.values + other.values,
            self.floats + other.floats,
            self.extremes + other.extremes,
            self.text + other.text,
        )

    def times(self, factor: int) -> "Weight":
        """Return the weight of so many checks."""
        return Weight(self.values * factor, self.floats * factor, self.extremes * factor, self.text * factor)

    def most(self, other: "Weight") -> "Weight":
        """Return what is heavier, of each part."""
        return Weight(
            max(self.values, other.values),
            max(self.floats, other.floats),
            max(self.extremes, other.extremes),
            max(self.text, other.text),
        )


def units_of(content: Mapping[str, Any], weight: Weight) -> float:
    """Return what judging the content costs at most, in units of ten nanoseconds; stops above MAX_UNITS."""
    most = (weight.values + weight.floats + weight.extremes) * _MOST_PLACES + weight.text * _MOST_TEXT
    if most <= MAX_UNITS:
        return most
    pending: list[Any] = [content]
    units, values, text, floats, extremes = weight.values, weight.values, weight.text, weight.floats, weight.extremes
    for value in pending:
        kind = type(value)
        if kind is str:
            units += text * len(value)
        elif kind is float:
            units += floats + (0 if value == 0 or 1e-9 < abs(value) < 1e15 else extremes)
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
    cost: int = 0
    """Steps beside those of a cheap comparison, for each place that it judges: see `_cost_of`."""
    weight: Weight = field(default_factory=Weight)
    """Of judging the place itself."""
    is_repeated: bool = False
    within: Weight = field(default_factory=Weight)
    """Of what it does with each value inside, beside what its subschemas do."""


def check_document(document: Any) -> None:
    """Check a schema document.

    Raises:
        SchemaUnusable: what is wrong, and where.
    """
    if not isinstance(document, dict):
        raise SchemaUnusable("$", "a schema is a JSON object: give one with type, properties, …")
    if document.get("$schema", DIALECT) != DIALECT:
        raise SchemaUnusable("$schema", f"only JSON Schema 2020-12 is read: leave $schema out, or write {DIALECT}")
    nodes = _SubschemaReader(document).nodes
    weight = _check_cost(nodes, _order(nodes))
    _check_dear(nodes)
    if weight.values * _LEAST_VALUES > MAX_UNITS:
        message = "each value of the content would be judged too dearly: use fewer alternatives, bounds and patterns"
        raise SchemaUnusable("$", f"{message} at one place")


def identity_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without title, description and examples: what may change under one version."""
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

    @staticmethod
    def _weigh(node: _Subschema, schema: dict[str, Any]) -> None:
        node.cost, node.weight, node.within = _cost_of(schema), _weight_of(schema), _weight_within(schema)
        node.is_repeated = not _UNEVALUATED.isdisjoint(schema)

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


def _check_cost(nodes: list[_Subschema], order: list[int]) -> Weight:
    """Bound how many subschemas judge one place, level by level; of all places of a level the worst one counts.

    Returns what judging a value costs at the worst place.
    """
    checks: Counter[int] = Counter({0: 1})
    closed = _closed(nodes, order)
    worst_weight = closed[0]
    seen: set[tuple[tuple[int, int], ...]] = set()
    for _ in range(LEVELS_LOOKED_AT):
        for at in order:
            if at in checks:
                for target in nodes[at].same:
                    checks[target] += checks[at]
        if checks.total() > MAX_CHECKS_OF_A_PLACE:
            worst = nodes[max(checks, key=lambda at: checks[at])].path
            message = f"one place of the content would be judged by more than {MAX_CHECKS_OF_A_PLACE} subschemas"
            raise SchemaUnusable(worst, f"{message}: let alternatives differ in the names of their recursive fields")
        fingerprint = tuple(sorted(checks.items()))
        if fingerprint in seen or not checks:
            break
        seen.add(fingerprint)
        worst_weight = worst_weight.most(_weight_inside(nodes, checks, closed))
        checks = _inside(nodes, checks)
    return worst_weight


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
_STEP = 50
"""Units of half a microsecond."""


def _is_extreme(number: float) -> bool:
    return not (number == 0 or 1e-9 < abs(number) < 1e15)


def _steps_of(value: Any) -> int:
    """Return what comparing with a value costs, in steps of half a microsecond: all of it may have to be looked at."""
    if isinstance(value, dict):
        return 1 + sum(map(_steps_of, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_steps_of, value))
    if isinstance(value, float) and not value.is_integer():
        return 140 if _is_extreme(value) else 4
    return 1


def _steps_of_values(schema: Mapping[str, Any]) -> int:
    """Return what `const` and `enum` cost; texts and whole numbers alone are looked up."""
    values = [*(schema["enum"] if isinstance(schema.get("enum"), list) else ())]
    dear = [one for one in values if isinstance(one, float | dict | list)]
    single = schema.get("const")
    return (
        sum(map(_steps_of, dear))
        + (len(values) // 32 if dear else 0)
        + (_steps_of(single) if isinstance(single, float | dict | list) else 0)
    )


def _cost_of(schema: Mapping[str, Any]) -> int:
    """Return what is dear of a subschema for each place that it judges, in steps of half a microsecond.

    A `multipleOf` that is no whole number is computed with fractions of a thousand digits; objects, lists and floats
    of an `enum` are compared one after the other. What is a few steps only counts with the weight.
    """
    multiple, steps = schema.get("multipleOf"), _steps_of_values(schema)
    fraction = _FRACTION if isinstance(multiple, float) and not multiple.is_integer() else 0
    return fraction + (steps if steps > _FEW_STEPS else 0)


_FEW_STEPS = 8


def _weight_of(schema: Mapping[str, Any]) -> Weight:
    """Return what a subschema does to a place that it judges, without the subschemas in it."""
    weight = Weight(values=1 + len(schema))
    for bound in (schema[key] for key in _BOUNDS if key in schema):
        whole = isinstance(bound, int) or (isinstance(bound, float) and bound.is_integer() and not _is_extreme(bound))
        weight += Weight(2, 3, 200) if whole else Weight(50, 100, 300)
    numbers = [one for one in (schema.get("const"), *_listed(schema, "enum")) if isinstance(one, int | float)]
    if any(isinstance(one, float) for one in numbers) or "const" in schema:
        weight += Weight(20, 200, 7_000).times(len(numbers))
    if 0 < (steps := _steps_of_values(schema)) <= _FEW_STEPS:
        weight += Weight(values=steps * _STEP)
    if isinstance(pattern := schema.get("pattern"), str):
        weight += Weight(values=10, text=_text_weight(pattern))
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        if isinstance(schema.get(key), dict):
            weight += Weight(values=3 * len(schema[key]))
    return weight


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    return schema[key] if isinstance(schema.get(key), list) else []


def _weight_within(schema: Mapping[str, Any]) -> Weight:
    """Return what a subschema does with each value inside the place: keys are matched, items compared."""
    weight = Weight(values=1)
    if "required" in schema:
        weight += Weight(values=2)
    if schema.get("uniqueItems") is True:
        # Up to fifteen items are compared each with each.
        weight += Weight(60, 800, 50_000)
    if "contains" in schema:
        weight += Weight(values=32)
    for pattern in schema.get("patternProperties", ()) if isinstance(schema.get("patternProperties"), dict) else ():
        weight += Weight(values=10, text=_text_weight(pattern))
    return weight


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


def _check_dear(nodes: list[_Subschema]) -> None:
    """Bound what is dear by how many places of the content it may judge: a packet has some hundred thousand."""
    places = dict.fromkeys(range(len(nodes)), 0)
    places[0] = 1
    changed = [0]
    for at in changed:
        node = nodes[at]
        inner = [(target, 1) for target in (*node.same, *(target for _, target in node.named))]
        for target, most in (*inner, *node.most.items()):
            found = min(places[at] * most, _MOST_PLACES)
            if found > places[target]:
                places[target] = found
                changed.append(target)
    for at, node in enumerate(nodes):
        if node.cost and node.cost * places[at] > _MOST_STEPS:
            message = (
                "a fraction as multipleOf, or objects in an enum, would be judged at too many places: give the list "
                "above it a smaller maxItems (or maxProperties), or use a whole number, or texts in the enum"
            )
            raise SchemaUnusable(node.path, message)


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
        return _compiled(dict(self.document) if self._blunt_document is None else self._blunt_document)

    @cached_property
    def weight(self) -> Weight:
        """What judging costs at most; of a schema that an older release took, too."""
        try:
            nodes = _SubschemaReader(dict(self.document)).nodes
            return _check_cost(nodes, _order(nodes))
        except SchemaUnusable:
            return Weight(values=MAX_UNITS // _LEAST_VALUES)

    def fault(self, content: Mapping[str, Any], path: str) -> ContentFault | None:
        """Return the first place where the content does not fit; `path` is the content's own in the packet.

        Content that would take too long to judge does not fit either.

        Looks no further: a packet of 256 KiB may have a hundred thousand faults, which would take seconds to name.
        """
        if units_of(content, self.weight) > MAX_UNITS:
            message = (
                "has too many values, or too much text, for the checks of its schema: send it in parts or as an "
                "artifact, or register a schema with fewer alternatives, bounds and patterns at one place"
            )
            return ContentFault(path, f"{message} ({self.schema_id})", self.hash.hex())
        if self._blunt_document is None:
            fits = self._validator.is_valid(content)
            message = f"this value does not fit its schema ({self.schema_id})"
            return None if fits else ContentFault(path, message, self.hash.hex())
        error = _first_error(self._validator, content)
        if error is None:
            return None
        message = self._said_of_all(error) or error.message
        for part in error.instance_path:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        return ContentFault(path, f"{message[:_LONGEST_MESSAGE]} ({self.schema_id})", self.hash.hex())

    def _said_of_all(self, error: Any) -> str | None:
        """Return the message about all alternatives, or all unexpected properties: the validator stops at the first."""
        *place, keyword = error.schema_path
        if keyword not in ("additionalProperties", "not"):
            return None
        schema: Any = self._blunt_document
        for step in place:
            schema = schema[step]
        if keyword == "not":
            # So `_blunt` writes alternatives.
            inner = schema["not"].get("not") if isinstance(schema["not"], dict) and place[-2:-1] == ["allOf"] else None
            one = next((key for key in inner if key in _ALTERNATIVES), None) if isinstance(inner, dict) else None
            return _NO_ALTERNATIVE[one] if one else None
        expected = {key: dict.fromkeys(schema.get(key, ()), True) for key in ("properties", "patternProperties")}
        alone = _compiled({**expected, "additionalProperties": False})
        message: str = next(iter(alone.iter_errors(error.instance))).message
        return message


def register_schema(schema_id: str, document: Any) -> RegisteredSchema:
    """Return a schema that is safe to judge by.

    Raises:
        SchemaUnusable: what is wrong with the document, and where.
    """
    check_document(document)
    _compiled(document)
    return known_schema(schema_id, document)


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


def _first_error(validator: Any, content: Mapping[str, Any]) -> Any:
    """Return the first fault, None where there is none."""
    import jsonschema_rs

    try:
        validator.validate(content)
    except jsonschema_rs.ValidationError as error:
        return error
    return None


def _compiled(document: dict[str, Any]) -> Any:
    # Slow to import, and needed by orchestrators and operators only.
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            document,
            validate_formats=False,
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
