"""Expressions of rules: what they read, what they give, what is refused. The corpus guards upgrades of the engine."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_contracts.contract.expressions import MAX_COST, Expression, FieldType, Vocabulary
from apc_contracts.errors import ContractInvalid

WORDS = Vocabulary(
    content={
        "risk": FieldType(kind="string", length=8, values=("high", "low")),
        "service": FieldType(kind="string"),
        "amount": FieldType(kind="number"),
        "pieces": FieldType(kind="integer"),
        "is_urgent": FieldType(kind="boolean"),
        "note": FieldType(kind="string", optional=True),
        "tags": FieldType(kind="strings", length=50, items=20),
        "lines": FieldType(kind="objects", items=20, length=50, fields=("sku", "n")),
    },
    schemas=("finding/1", "action/1"),
    kept={"finding/1": ("service",)},
    roles=("lead", "logs", "metrics"),
    counters={"risky": None, "spend": "number"},
)
VALUES: dict[str, Any] = {
    "content.risk": "high",
    "content.service": "checkout",
    "content.amount": 12.5,
    "content.pieces": 3,
    "content.is_urgent": True,
    "content.tags": ["a", "b"],
    "content.lines": [{"sku": "x", "n": 2.0}, {"sku": "y", "n": 4.0}],
    "has(content.note)": False,
    'authors("finding/1")': 2,
    'authors("finding/1", "service")': 1,
    'cites_role("logs")': True,
    'approved_by("lead")': True,
    'approved_by("lead", 2)': False,
    'count("risky")': 1,
    'sum("spend")': 480.0,
    'effect("refund")': "made",
    "packet.type": "MESSAGE",
    "packet.to": ["fixer"],
    "packet.to_roles": ["lead"],
    "sender.role": "logs",
    "sender.rights": [],
    "session.age_s": 60.0,
    "left.tokens": 10.0,
    "local.hour": 9,
    "local.weekday": 5,
}
CORPUS = {
    'content.risk == "high"': True,
    "content.risk == 'low'": False,
    'content.risk != "high" || authors("finding/1") >= 2': True,
    'authors("finding/1", "service") >= 2': False,
    'authors( "finding/1" ,\n "service" ) == 1': True,
    "content.amount > 3": True,
    "content.amount * 2 + 1 < 26": False,
    "1 < content.amount": True,
    "content.amount <= 12.5": True,
    "content.pieces > 3": False,
    "content.pieces % 2 == 1": True,
    "double(content.pieces) < content.amount": True,
    "content.is_urgent": True,
    "!content.is_urgent": False,
    'has(content.note) && content.note.contains("x")': False,
    '!has(content.note) || content.note.startsWith("x")': True,
    'content.tags.exists(tag, tag == "b")': True,
    "content.tags.all(tag, size(tag) == 1)": True,
    'content.tags.exists_one(tag, tag == "c")': False,
    'size(content.tags.filter(tag, tag != "a")) == 1': True,
    '"a" in content.tags': True,
    "content.lines.all(line, line.n > 3)": False,
    'content.lines.exists(line, line.sku == "y" && line.n >= 4)': True,
    'content.service.matches("^check[a-z]+$")': True,
    'content.service.endsWith("out")': True,
    "content.service.size() == 8": True,
    'cites_role("logs") && approved_by("lead")': True,
    'approved_by("lead", 2)': False,
    'count("risky") < 1': False,
    'sum("spend") + content.amount <= 500': True,
    'effect("refund") == "made"': True,
    'effect("refund") in ["absent", "settled"]': False,
    'packet.type == "MESSAGE" && "fixer" in packet.to': True,
    '"lead" in packet.to_roles': True,
    'sender.role in ["logs", "metrics"]': True,
    '"operate" in sender.rights': False,
    "session.age_s < 3600": True,
    "left.tokens >= 10": True,
    "local.hour >= 9 && local.hour < 17 && local.weekday <= 5": True,
    'content.risk == "high" ? approved_by("lead") : true': True,
    "true": True,
}
REFUSED = {
    'packet.type == "DECISON"': "line 1, column 16: unknown value DECISON: do you mean DECISION?",
    'content.rsik == "high"': "line 1, column 1: unknown field content.rsik: do you mean content.risk?",
    'approved_by("laed")': "unknown role laed: do you mean lead?",
    'content.risk == "hihg"': "unknown value hihg: do you mean high?",
    'cited("fnding/1") > 0': "unknown schema fnding/1: do you mean finding/1?",
    'authors("finding/1", "text") > 1': "the field 'text' of finding/1 is not kept: write keep: {finding/1: [text]}",
    'count("spend") < 1': "spend adds amounts: use sum()",
    'count("rsiky") < 1': "unknown counter for count() rsiky: do you mean risky?",
    'sender.role != "laed"': "unknown value laed: do you mean lead?",
    "content.is_urgent and content.amount > 3": "there is no 'and': write &&",
    "content.risk > 3": "text > whole number cannot be: compare like with like",
    "content.pieces > 3.5": "whole number > number cannot be: compare like with like",
    'content.note == "x"': "content.note may be absent: ask has(content.note) && … first",
    "content.risk": "it gives string, not true or false",
    "content.tags.map(t, t)": "unknown method map",
    "content.tags.all(t, content.tags.exists(u, u == t))": "content.tags is a list, and a list in a macro may run long",
    "content.tags.all(t, [t].exists(u, u == t))": "a macro in a macro may run long",
    'content.tags.all(t, t + "x" == "y")': "no + inside a macro",
    "content.service.matches(content.risk)": "matches() takes a pattern written out",
    'content.service.matches("a{1000}")': "matches() takes a pattern written out, without {}",
    "authors(content.service) > 1": "authors() takes texts in quotes and whole numbers, written out",
    'approved_by("lead", 99)': "1 to 16 people can be asked",
    "approved_by(2)": "approved_by(): role is a text",
    "content.risk == high": "unknown name high",
    "frobnicate(3)": "unknown function frobnicate",
    "left.money > 1": "unknown word left.money",
    'content.risk == "high" // why': "a comment cannot be read",
    r'content.risk == "\x68igh"': "cannot be read",
    'r"x" == "y"': "unknown name r",
    "content.lines.all(line, line.q > 3)": "unknown field q; known: n, sku",
    "": "it is empty",
    "content.tags[": "Syntax error",
}


@pytest.mark.parametrize(("text", "wanted"), CORPUS.items(), ids=str)
def test_an_expression_gives_what_it_says(text: str, wanted: bool) -> None:
    expression = Expression(text, "rules[0].require", WORDS)
    expression.check()
    read = {reading.text: VALUES[reading.text] for reading in expression.readings if reading.text in VALUES}
    assert expression.holds(read) is wanted


@pytest.mark.parametrize(("text", "wanted"), REFUSED.items(), ids=str)
def test_a_wrong_expression_is_refused_with_its_place(text: str, wanted: str) -> None:
    with pytest.raises(ContractInvalid) as refused:
        Expression(text, "rules[0].require", WORDS).check()
    assert refused.value.place == "rules[0].require"
    assert wanted in refused.value.message


def test_an_error_does_not_hold() -> None:
    """Neither alone nor under a negation."""
    for text in ('content.risk == "high"', '!(content.risk == "high")', "content.lines.all(line, line.n > 3)"):
        assert Expression(text, "p", WORDS).holds({}) is False
    mixed = Expression("content.lines.all(line, line.n > 3)", "p", WORDS)
    assert mixed.holds({"content.lines": [{"sku": "x"}]}) is False
    assert Expression("1 / content.pieces == 1", "p", WORDS).holds({"content.pieces": 0}) is False


def test_what_may_cost_too_much_is_refused() -> None:
    """`python -m benchmarks.calls.rules --search MINUTES` measures what the bound means."""
    words = Vocabulary(content={"texts": FieldType(kind="strings", length=4_096, items=256)})
    for text in ("content.texts.exists(t, t.matches('.*a.*b'))", "content.texts.all(t, t.contains('x'))"):
        with pytest.raises(ContractInvalid, match="it may cost"):
            Expression(text, "p", words).check()
    Expression("content.texts.exists(t, t == 'x')", "p", words).check()
    many = " && ".join(["content.service.matches('a*')"] * 30)
    assert MAX_COST < Expression(many, "p", WORDS).cost


PIECES = st.sampled_from(
    [
        *"()[].,!?:+-*/%<>'\"\\ \n",
        "&&",
        "==",
        "content",
        "content.risk",
        "has(",
        "authors(",
        '"finding/1"',
        ".all(t, ",
        "t",
        "size(",
        "1",
        "2.5",
        "in",
        "true",
        ".matches(",
        "//",
        "#",
        "é",
        "\x00",
        "e1",
        "0x1",
        "null",
        "{}",
        "b'",
    ]
)


@given(st.lists(PIECES, max_size=24).map("".join))
@settings(max_examples=1_500)
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        expression = Expression(text, "p", WORDS)
        expression.check()
    except ContractInvalid:
        return
    assert expression.holds(VALUES) in (True, False)
