"""Rules that are comparisons alone are judged as CEL judges them."""

from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from apc_contracts.contract.comparisons import comparison_of
from apc_contracts.contract.expressions import Expression, FieldType, Vocabulary, is_true
from apc_contracts.errors import ContractInvalid

WORDS = Vocabulary(
    content={
        "risk": FieldType(kind="string", length=64),
        "note": FieldType(kind="string", length=64),
        "amount": FieldType(kind="number"),
        "cents": FieldType(kind="integer"),
        "urgent": FieldType(kind="boolean"),
        "tags": FieldType(kind="strings", length=64),
        "parts": FieldType(kind="numbers"),
    },
    kept={"finding/1": ["risk"]},
    counters={"acts": None, "paid": "number"},
)
TEXTS = ("", "a", "b", "high", "low", "é", "e\u0301", "\U0001f600", "\uffff", "Z")
NUMBERS = (0.0, -0.0, 0.1, 0.30000000000000004, 1.0, 2.5, -3.0, 1e300, -1e300, 9007199254740991.0, 5e-324)
COUNTS = (0, 1, -1, 2, 5, 9007199254740991, -9007199254740991)
READINGS: Mapping[str, tuple[str, ...]] = {
    "string": ("content.risk", "content.note", "sender.role", "packet.type"),
    "number": ("content.amount", 'sum("paid")', "session.age_s", "packet.confidence"),
    "integer": ("content.cents", 'count("acts")', 'authors("finding/1", "risk")', "session.round", "local.hour"),
    "boolean": ("content.urgent", 'cites_role("logs")', 'approved_by("lead", 2)', 'cites("a")'),
    "strings": ("content.tags", "packet.to_roles"),
    "numbers": ("content.parts",),
}


def expression(text: str) -> Expression:
    return Expression(text, "rule", WORDS)


def by_cel(found: Expression, values: Mapping[str, Any]) -> bool:
    """Return what CEL says."""
    return is_true(found._program, {one.variable: values[one.variable] for one in found.readings})


class Writer:
    """Writes random comparisons, and values for them."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def whole(self, depth: int = 3) -> str:
        """Return an expression of the type boolean."""
        pick, kind = self.random.random(), self.random.choice(("string", "number", "integer", "boolean"))
        if depth and pick < 0.35:
            return self.random.choice((" && ", " || ")).join(self.whole(depth - 1) for _ in range(2 + (pick < 0.1)))
        if depth and pick < 0.5:
            return f"{self.random.choice(('!', ''))}({self.whole(depth - 1)})"
        if pick < 0.6:
            return self.random.choice(READINGS["boolean"])
        if pick < 0.75:
            return self.contained()
        words = ("==", "!=") if kind == "boolean" else ("==", "!=", "<", "<=", ">", ">=")
        return f"{self.part(kind)} {self.random.choice(words)} {self.part(kind)}"

    def contained(self) -> str:
        """Return whether a list has a value."""
        kind = self.random.choice(("string", "number"))
        if self.random.random() < 0.5:
            return f"{self.part(kind)} in {self.random.choice(READINGS[f'{kind}s'])}"
        return f"{self.part(kind)} in [{', '.join(self.literal(kind) for _ in range(self.random.randint(0, 3)))}]"

    def part(self, kind: str) -> str:
        """Return a reading, a literal or a sum of a type."""
        if kind == "number" and self.random.random() < 0.3:
            return self.random.choice((" + ", " - ")).join(self.random.choice(READINGS[kind]) for _ in range(2))
        return self.random.choice(READINGS[kind]) if self.random.random() < 0.7 else self.literal(kind)

    def literal(self, kind: str) -> str:
        """Return a value that is written out."""
        if kind == "string":
            return f'"{self.random.choice(TEXTS)}"'
        if kind == "boolean":
            return self.random.choice(("true", "false"))
        return self.random.choice(("0", "1", "2", "5") if kind == "integer" else ("0.0", "0", "0.1", "2.5", "1e300"))

    def value(self, kind: str) -> Any:
        """Return a value of a type."""
        if kind.endswith("s"):
            return [self.value(kind.removesuffix("s")) for _ in range(self.random.randint(0, 3))]
        values: Mapping[str, Any] = {"string": TEXTS, "number": NUMBERS, "integer": COUNTS, "boolean": (True, False)}
        return self.random.choice(values[kind])


@pytest.mark.parametrize("seed", range(20))
def test_comparisons_mean_what_they_mean_in_cel(seed: int) -> None:
    writer, plain, kept = Writer(Random(seed)), 0, 0
    for _ in range(60):
        text = writer.whole()
        try:
            found = expression(text)
            found.check()
        except ContractInvalid:
            continue
        give = comparison_of(None, found)
        if give is None:  # a list of whole and decimal numbers, of which CEL makes another type
            continue
        plain += 1
        for _ in range(5):
            values = {one.variable: writer.value(one.gives.kind) for one in found.readings}
            assert give(values) is by_cel(found, values), (text, values)
            kept += give(values)
    assert plain > 30
    assert 0 < kept < plain * 5, "both outcomes were met"


@pytest.mark.parametrize(
    ("when", "require", "values", "is_kept"),
    [
        ("content.urgent", "content.cents < 5", {"content.urgent": False, "content.cents": 9}, True),
        ("content.urgent", "content.cents < 5", {"content.urgent": True, "content.cents": 9}, False),
        ("content.urgent", "content.cents < 5", {"content.urgent": True, "content.cents": 4}, True),
    ],
)
def test_a_condition_decides_whom_a_rule_is_for(when: str, require: str, values: dict[str, Any], is_kept: bool) -> None:
    give = comparison_of(expression(when), expression(require))

    assert give is not None
    assert give(values) is is_kept


@pytest.mark.parametrize(
    "text",
    [
        "size(content.tags) > 0",
        'content.risk.startsWith("h")',
        'content.risk.matches("h.*")',
        'content.tags.all(tag, tag == "a")',
        "content.cents + 1 > 2",
        "content.cents - 9007199254740991 < 0",
        "content.amount * 2.0 > 1.0",
        "content.amount / 2.0 > 1.0",
        "-content.amount < 0.0",
        'content.urgent ? content.risk == "a" : true',
        "content.tags == packet.to_roles",
        "double(content.cents) > 1.5",
        r'content.risk == "a\"b"',
        'content.risk + content.note == "ab"',
        "content.cents % 2 == 0",
        "(content.urgent == content.urgent) == content.urgent ? true : false",
    ],
)
def test_everything_else_belongs_to_cel(text: str) -> None:
    found = expression(text)
    found.check()

    assert comparison_of(None, found) is None
    assert comparison_of(found, expression("true")) is None


def test_a_missing_value_is_an_error() -> None:
    give = comparison_of(None, expression('content.cents < 5 && content.risk == "a"'))

    assert give is not None
    with pytest.raises(KeyError):
        give({"content.cents": 1})
