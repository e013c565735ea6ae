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
_FRACTION = 80
_MOST_STEPS = 40_000
"""Twenty milliseconds."""

_LOCAL = re.compile(r"#(?:/(\$defs|definitions)/([^/~%]+))?")
_FOREIGN = frozenset("$id $anchor $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $vocabulary".split())
_SAME_PLACE = frozenset({"not", "if", "then", "else"})
_SAME_PLACE_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_ANY_PLACE = frozenset(
    "additionalProperties unevaluatedProperties propertyNames items contains unevaluatedItems".split()
)
_ANNOTATIONS = frozenset({"title", "description", "examples"})
_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_VALUES = frozenset({"const", "enum", "default"})


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
    _check_cost(nodes, _order(nodes))
    _check_dear(nodes)


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
        self.nodes[0].cost = _cost_of(document)
        for number, schema in pending:
            for slot, step, path, inner in self._inner(self.nodes[number], schema):
                if not isinstance(inner, dict):
                    continue  # true and false judge nothing further
                target = self._add(path)
                self.nodes[target].cost = _cost_of(inner)
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


def _check_cost(nodes: list[_Subschema], order: list[int]) -> None:
    """Bound how many subschemas judge one place, level by level; of all places of a level the worst one counts."""
    checks: Counter[int] = Counter({0: 1})
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
            return
        seen.add(fingerprint)
        checks = _inside(nodes, checks)


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


def _cost_of(schema: Mapping[str, Any]) -> int:
    """Return what is dear of a subschema for each place that it judges, in steps of half a microsecond.

    A `multipleOf` that is no whole number is computed with fractions of a thousand digits; of an `enum`, texts and
    numbers are looked up, and objects and lists are compared one after the other.
    """
    multiple, values = schema.get("multipleOf"), schema.get("enum")
    fraction = _FRACTION if isinstance(multiple, float) and not multiple.is_integer() else 0
    return fraction + sum(isinstance(one, dict | list) for one in (values if isinstance(values, list) else ()))


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
    def _validator(self) -> Any:
        return _compiled(dict(self.document))

    def fault(self, content: Mapping[str, Any], path: str) -> ContentFault | None:
        """Return the first place where the content does not fit; `path` is the content's own in the packet.

        Looks no further: a packet of 256 KiB may have a hundred thousand faults, which would take seconds to name.
        """
        validator = self._validator
        if validator.is_valid(content):
            return None
        error = _first_error(validator, content)
        message = self._all_unexpected(error) or error.message
        for part in error.instance_path:
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
        return ContentFault(path, f"{message[:_LONGEST_MESSAGE]} ({self.schema_id})", self.hash.hex())

    def _all_unexpected(self, error: Any) -> str | None:
        """Return the message that names all unexpected properties of an object: the validator stops at the first."""
        *place, keyword = error.schema_path
        if keyword != "additionalProperties":
            return None
        schema: Any = self.document
        for step in place:
            schema = schema[step]
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


def _first_error(validator: Any, content: Mapping[str, Any]) -> Any:
    import jsonschema_rs

    try:
        validator.validate(content)
    except jsonschema_rs.ValidationError as error:
        return error
    raise AssertionError("the content fits")


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
