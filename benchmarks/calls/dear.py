"""Looks for the slowest schema and content, and the slowest guard, that registration takes.

`python -m benchmarks.calls.rules --search MINUTES` runs it beside the search for rules.
"""

import json
import time
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import orjson

from apc_contracts.contract.machines import Guard
from apc_contracts.errors import ContractInvalid, SchemaUnusable
from apc_contracts.limits import DEFAULT_LIMITS
from apc_contracts.schemas import MAX_UNITS, RegisteredSchema, register_schema, units_of

_PATTERNS = (
    "(a|b)*a(a|b){14}c",
    "[a-z]*a[a-z]{30}c",
    r"^[^@]+@[^@.]+\.[a-z]{2,}$",
    "^[a-z]{1,64}$",
    r"\w+\d",
    "a*b$",
    "a",
)
_ANYTHING: tuple[Any, ...] = (1, 0.5, 1e-300, 1e300, "a", None, {"a": 1}, [0.5] * 20)
_VALUES: tuple[Any, ...] = (
    *_ANYTHING,
    123456789012345.6,
    1e22,
    {},
    [],
    list(range(15)),
    [at + 0.5 for at in range(15)],
    [1e-300 * at for at in range(15)],
    [[at] for at in range(200)],
    {f"k{at}": at for at in range(15)},
    {f"k{at}": 0.5 for at in range(200)},
    {f"k{at}": 1e-300 for at in range(200)},
    {"a": {"b": {"c": {}}}},
    {"a": 1e-300},
    [[0.1234567890123456 + at * 1e-16 for at in range(15)]] * 4,
    "".join(Random(2).choice("ab") for _ in range(13)),
    "".join(Random(2).choice("ab") for _ in range(60_000)),
    "ab@cd.de",
)
_LEAVES: tuple[Callable[[Random], dict[str, Any]], ...] = (
    lambda random: {"type": random.choice(("integer", "number", "string", "object", "null"))},
    lambda random: {
        random.choice(("minimum", "exclusiveMinimum", "multipleOf")): random.choice((1, 2.0, 0.5, 1e-300, 1e300))
    },
    lambda random: {"const": random.choice(_ANYTHING)},
    lambda random: {"enum": [random.choice((0.5, 1e-300, 1e22, "a", 1)) for _ in range(random.randint(1, 300))]},
    lambda random: {"enum": [{"a": at} for at in range(random.randint(1, 100))]},
    lambda random: {"enum": [[{"k": f"{at}"}] * 9 for at in range(random.randint(1, 400))]},
    lambda random: {"enum": list(range(random.choice((2, 50, 5_000))))},
    lambda random: {"enum": [f"{at}" for at in range(random.choice((2, 50, 5_000)))]},
    lambda random: {"maximum": -1.0, "multipleOf": random.choice((0.01, 0.123456789, 7, 1e22))},
    lambda random: {"uniqueItems": True, "items": {"type": random.choice(("string", "integer"))}},
    lambda random: {"pattern": random.choice(_PATTERNS)},
    lambda random: {"minLength": 1, "maxLength": 1_000},
    lambda random: {"uniqueItems": True},
    lambda random: {"required": [f"k{at}" for at in range(random.randint(1, 200))]},
    lambda random: {"dependentRequired": {f"k{at}": ["x"] for at in range(random.randint(1, 200))}},
    lambda random: {"format": "date", "minProperties": 0, "maxProperties": 9_999, "minItems": 0},
)


def _schema(random: Random, depth: int = 4) -> dict[str, Any]:
    if depth == 0 or random.random() < 0.3:
        return random.choice(_LEAVES)(random)

    def inner() -> dict[str, Any]:
        return _schema(random, depth - 1)

    many = random.choice((1, 2, 8, 40))
    kind = random.randint(0, 10)
    if kind < 3:
        return {random.choice(("allOf", "anyOf", "oneOf")): [inner()] * many}
    if kind == 3:
        return {"not": {"not": inner()}, "if": inner(), "then": inner(), "else": inner()}
    if kind == 4:
        return {"patternProperties": {f"^[a-z]{{1,{at + 1}}}{at}?": inner() for at in range(many)}}
    if kind == 5:
        return {random.choice(("additionalProperties", "unevaluatedProperties", "propertyNames")): inner()}
    if kind == 6:
        return {"contains": inner(), "minContains": 0, "maxContains": random.choice((1, 9_999))}
    if kind == 7:
        return {"uniqueItems": True, "items": inner()} | ({"maxItems": many} if random.random() < 0.5 else {})
    if kind == 8:
        return {"properties": {f"k{at}": inner() for at in range(many)}, "additionalProperties": inner()}
    if kind == 9:
        return {"dependentSchemas": {f"k{at}": inner() for at in range(many)}}
    return {"$ref": "#/$defs/d"} if random.random() < 0.5 else {"items": inner(), "unevaluatedItems": inner()}


def _content(random: Random, count: int) -> dict[str, Any]:
    values = [random.choice(_VALUES) for _ in range(random.choice((1, 1, 2)))]
    listed = [values[at % len(values)] for at in range(count)]
    shape = random.randint(0, 3)
    if shape == 0:
        return {f"k{at}": value for at, value in enumerate(listed)}
    return {"l": listed} if shape == 1 else {"l": [listed[at : at + 15] for at in range(0, count, 15)], "k1": listed[0]}


def _nodes(text: bytes) -> int:
    """Return how many values a JSON text has at most."""
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def _largest(schema: RegisteredSchema, seed: int) -> dict[str, Any]:
    """Return the largest content of a shape that fits into a packet and is judged."""
    sizes = (len(orjson.dumps(_content(Random(seed), 1))), len(orjson.dumps(_content(Random(seed), 2))))
    count = min(20_000, 1 + 2 * DEFAULT_LIMITS.size_bytes // max(sizes))
    while True:
        content = _content(Random(seed), count)
        text = orjson.dumps(content)
        if (
            len(text) <= DEFAULT_LIMITS.size_bytes
            and _nodes(text) <= DEFAULT_LIMITS.nodes
            and units_of(content, schema.weight) <= MAX_UNITS
        ):
            return content
        if count == 1:
            return {}
        count = count // 2 if len(text) > 2 * DEFAULT_LIMITS.size_bytes else count * 4 // 5


def search_schemas(minutes: float) -> Mapping[str, Any]:
    """Print the slowest schemas found, and return the worst with what was tried."""
    random, worst = Random(time.time_ns()), (0.0, "", "")
    end, tried, refused = time.monotonic() + minutes * 60, 0, 0
    while time.monotonic() < end:
        inside = _schema(random)
        document = random.choice(
            (
                inside,
                {"properties": {"l": inside}},
                {"properties": {f"k{at}": {"$ref": "#/$defs/d"} for at in range(99)}, "additionalProperties": inside},
                {"properties": {"l": {"items": inside}}},
                {"additionalProperties": inside},
            )
        ) | {"$defs": {"d": _schema(random, 2)}}
        tried += 1
        try:
            schema = register_schema("search/1", document)
        except SchemaUnusable:
            refused += 1
            continue
        for _ in range(4):
            content = _largest(schema, random.getrandbits(32))
            best = _once(schema, content)
            if best > worst[0]:
                best = min(_once(schema, content) for _ in range(5))
            if best > worst[0]:
                worst = best, json.dumps(document), json.dumps(content)
                print(f"{best * 1000:8.2f} ms: {worst[1][:600]} <- {worst[2][:120]}", flush=True)
    return {
        "schemas_tried": tried,
        "refused": refused,
        "worst_ms": round(worst[0] * 1000, 2),
        "schema": worst[1][:2_000],
        "content": worst[2][:300],
    }


def _once(schema: RegisteredSchema, content: Mapping[str, Any]) -> float:
    began = time.thread_time()
    schema.fault(content, "payload.content")
    return time.thread_time() - began


_GUARD_PIECES: tuple[Callable[[Random], str], ...] = (
    lambda random: f"{_list(random)}.all(x, {' && '.join(['x <= round'] * random.randint(1, 30))})",
    lambda random: f"size({_list(random)}.map(x, {_list(random, 'x')})) > 0",
    lambda random: f"{_list(random)}{'.filter(x, x <= round)' * random.randint(1, 20)} != []",
    lambda random: (
        f"[{', '.join(['name'] * random.randint(1, 100))}].all(x, x{' + x' * random.randint(1, 60)} != name)"
    ),
    lambda random: f"name{' + name' * random.randint(1, 100)} != name",
    lambda random: f"name.matches('{'(a|aa)*' * random.randint(1, 12)}b')",
    lambda random: "!name.contains('aaaaaaab')",
)


def _list(random: Random, item: str = "1.0") -> str:
    return f"[{', '.join([item] * random.randint(1, 150))}]"


def search_guards(minutes: float) -> Mapping[str, Any]:
    """Print the slowest guards found, and return the worst with what was tried."""
    random, worst = Random(time.time_ns()), (0.0, "")
    end, tried, refused = time.monotonic() + minutes * 60, 0, 0
    while time.monotonic() < end:
        text = random.choice((" && ", " || ")).join(
            random.choice(_GUARD_PIECES)(random) for _ in range(random.randint(1, 6))
        )
        if len(text) > 1_000:
            continue
        tried += 1
        guard = Guard(text, "search", {"round": "float", "name": "string"})
        try:
            guard.check()
        except ContractInvalid:
            refused += 1
            continue
        taken = []
        for at in range(3):
            values = {"round": 1.0 + at, "name": "a" * 4_095 + str(at)}  # its answers are memoised
            began = time.thread_time()
            guard.holds(values)
            taken.append(time.thread_time() - began)
        if min(taken) > worst[0]:
            worst = min(taken), text
            print(f"{worst[0] * 1000:8.2f} ms: {text[:200]}", flush=True)
    return {"guards_tried": tried, "refused": refused, "worst_ms": round(worst[0] * 1000, 2), "guard": worst[1]}
