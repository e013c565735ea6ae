"""An agent asks about one payment and tells of another: people at the terminal see what they approve."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from apc_cli.system import teams
from apc_log.queries.questions import QuestionRow

from .test_terminal_escapes import ACTS, HOSTILE

LIE = 'Pay 5 euros?\nabout: {"schema":"refund/1","content":{"euros":5}}'


def question(text: str, content: dict[str, Any] | None) -> QuestionRow:
    """Return an open question of a clerk."""
    now = datetime.now(UTC)
    return QuestionRow(
        uuid4(), "s", "r", "t", "EXECUTION", None, None, "clerk", ("ida",), "lead", "", now, now, text, content,
        answer_schema={"properties": {HOSTILE: {"title": HOSTILE, "description": HOSTILE, "enum": [HOSTILE]}}},
    )  # fmt: skip


async def said(asked: QuestionRow, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what ida sees before she answers; then the input ends."""

    async def nothing() -> None:
        return None

    nobody: Any = SimpleNamespace(read_line=nothing, forget_typed=lambda: None)
    assert not await teams._answer(nobody, nobody, asked, "ida")
    return capsys.readouterr().err.partition("approve?")[0]


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_people_see_what_they_approve(
    is_guarded: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_guarded:
        monkeypatch.setattr(teams, "data_of", lambda question: "")
    shown = await said(question(LIE, {"schema": "refund/1", "content": {"euros": 9000}}), capsys)
    lines = [line for line in shown.splitlines() if line.startswith("about: ")]
    assert lines == (['about: {"schema":"refund/1","content":{"euros":9000}}'] if is_guarded else [])


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_what_they_see_does_not_act_on_the_terminal(
    is_guarded: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_guarded:
        monkeypatch.setattr(teams, "echo", print)
        monkeypatch.setattr(teams, "one_line", str)
    shown = await said(question(HOSTILE, {HOSTILE: HOSTILE}), capsys)
    assert bool(ACTS.search(shown)) is not is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_the_fields_that_are_asked_for_do_not_act_on_the_terminal(
    is_guarded: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names, titles, descriptions and choices are the asker's; so is what a wrong answer is told."""
    if not is_guarded:
        monkeypatch.setattr(teams, "echo", print)
        monkeypatch.setattr(teams, "one_line", str)
    typed = iter(["y", "no choice"])

    async def read_line() -> str | None:
        return next(typed, None)

    lines: Any = SimpleNamespace(read_line=read_line, forget_typed=lambda: None)
    assert not await teams._answer(lines, lines, question("Ship?", None), "ida")
    shown = capsys.readouterr().err
    assert "no choice" in shown
    assert bool(ACTS.search(shown)) is not is_guarded
