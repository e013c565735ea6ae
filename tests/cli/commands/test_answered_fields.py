"""What somebody types for the fields of a question, at `apc approval` and at the terminal of `apc run`."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from apc_cli.errors import InputUnusable
from apc_cli.system import teams
from apc_contracts.answers import answer_fields, read_fields
from apc_log.queries.questions import QuestionRow

SCHEMA: dict[str, Any] = {
    "$defs": {"Reason": {"enum": ["broken", "late", 3], "type": "string"}},
    "properties": {
        "amount": {
            "type": "string",
            "format": "decimal",
            "maximum": 500,
            "title": "Amount",
            "description": "In euros.",
        },
        "count": {"type": "integer"},
        "share": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "is_urgent": {"type": "boolean"},
        "reason": {"$ref": "#/$defs/Reason"},
        "notes": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object"},
    },
    "required": ["amount", "is_urgent"],
    "x-order": ["amount", "count", "share", "is_urgent", "reason", "notes", "place"],
}
GIVEN = ["amount=80.50", "count=2", "share=0.5", "is_urgent=Yes", "reason=3", "notes=a", "notes=b=c", 'place={"x": 1}']
ANSWER = {
    "amount": "80.50", "count": 2, "share": 0.5, "is_urgent": True, "reason": 3, "notes": ["a", "b=c"],
    "place": {"x": 1},
}  # fmt: skip


def test_a_field_is_read_by_its_kind() -> None:
    assert read_fields(SCHEMA, GIVEN) == ANSWER


def test_each_field_is_described_in_a_line() -> None:
    assert [field.words for field in answer_fields(SCHEMA)][:5] == [
        "amount (decimal, needed): Amount: In euros.",
        "count (integer, may be left out)",
        "share (number, may be left out)",
        "is_urgent (boolean, needed)",
        "reason (one of broken, late, 3, may be left out)",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("count=x", "count: 'x' is no count"),
        ("reason=other", "reason: 'other' is no reason"),
        ("place={", "place: '{' is no place"),
        ("amount", "'amount' names no field"),
        ("further=1", "The question asks for: amount"),
    ],
)
def test_what_a_field_does_not_take_is_said(given: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"(?s).*") as refused:
        read_fields(SCHEMA, [given])
    assert said in str(refused.value)


def test_a_field_is_given_once() -> None:
    with pytest.raises(ValueError, match="count is given twice"):
        read_fields(SCHEMA, ["count=1", "count=2"])


class Terminal:
    """A client and its standard input."""

    def __init__(self, *typed: str, refusal: str = "") -> None:
        self.typed = iter(typed)
        self.refusal = refusal
        self.answers: list[dict[str, Any]] = []

    async def read_line(self) -> str | None:
        return next(self.typed, None)

    def forget_typed(self) -> None: ...

    async def answer(self, question: Any, **given: Any) -> str:
        self.answers.append(given)
        if self.refusal:
            raise InputUnusable(self.refusal)
        return "ida"


def asked() -> QuestionRow:
    now = datetime.now(UTC)
    return QuestionRow(
        uuid4(), "s", "r", "t", "EXECUTION", None, None, "clerk", ("ida",), "lead", "", now, now, "Pay?", None,
        answer_schema=SCHEMA,
    )  # fmt: skip


async def test_a_person_is_asked_for_each_field_and_again_for_one_that_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = ("y go", "501", "two", "2", "", "yes", "", "a", "b", "", "", "80.50")
    terminal: Any = Terminal(*typed)
    assert await teams._answer(terminal, terminal, asked(), "ida")
    (given,) = terminal.answers
    wanted = {"amount": "80.50", "count": 2, "is_urgent": True, "notes": ["a", "b"]}
    assert (given["approved"], given["note"], given["answer"]) == (True, "go", wanted)
    shown = capsys.readouterr().err
    assert "count: 'two' is no count (integer, may be left out)" in shown
    assert "answer.amount: this value is to be at most 500" in shown


async def test_a_denial_asks_for_no_field() -> None:
    terminal: Any = Terminal("n too dear")
    assert await teams._answer(terminal, terminal, asked(), "ida")
    assert terminal.answers == [{"approved": False, "note": "too dear", "person": "ida", "answer": None}]


async def test_the_question_stays_open_when_the_input_ends_between_fields() -> None:
    terminal: Any = Terminal("y", "80.50")
    assert not await teams._answer(terminal, terminal, asked(), "ida")
    assert terminal.answers == []
