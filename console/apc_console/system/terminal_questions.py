"""Ask the people who sit at this terminal what handlers ask them."""

import asyncio
import sys
from collections.abc import Collection
from datetime import UTC, timedelta
from typing import Final
from uuid import UUID

from apc_client import Client
from apc_console.errors import InputUnusable
from apc_console.output.standard_input import StandardInput
from apc_console.output.terminal import echo
from apc_contracts.text import one_line
from apc_log.queries.questions import QuestionRow

PAUSE: Final = timedelta(milliseconds=100)
"""Between two looks at the open questions."""
_YES: Final = frozenset({"y", "yes"})
_NO: Final = frozenset({"", "n", "no"})


async def answer_here(client: Client, session_id: str, people: Collection[str]) -> None:
    """Print each question of a session once; answer those to one of these people with a line of the standard input.

    Of the others, and of all when the standard input has ended, it says how they are answered.
    """
    lines, asked = StandardInput(), set[UUID]()
    while True:
        for question in await client.questions(session_id):
            able = [one for one in question.may_answer if one in people]
            if question.packet_id in asked:
                continue
            asked.add(question.packet_id)
            if not able:
                _say(_waiting(question))
            elif not await _answer(client, lines, question, able[0]):
                people = ()
        await asyncio.sleep(PAUSE.total_seconds())


async def _answer(client: Client, lines: StandardInput, question: QuestionRow, person: str) -> bool:
    """Ask until the answer is yes or no; return False at the end of the standard input."""
    _say(f"{person} is asked by {question.asker}: {_text(question)}")
    while True:
        _say("approve? y or n, and a note if you like")
        line = await lines.read_line()
        if line is None:
            _say("nobody answers here: the standard input has ended, and the question stays open")
            _say(_waiting(question))
            return False
        word, _, note = line.strip().partition(" ")
        if word.lower() in _YES | _NO:
            break
    try:
        await client.answer(question.packet_id, approved=word.lower() in _YES, note=note.strip() or None, person=person)
    except InputUnusable as error:  # its time is over, or somebody else was faster
        _say(str(error))
    return True


def _waiting(question: QuestionRow) -> str:
    asked = ", ".join(question.may_answer)
    until = f"{question.due_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    way = f"`apc approval approve {question.packet_id}`, or deny, in another terminal"
    return f"{question.asker} asks {asked}: {_text(question)} It waits until {until}: {way}"


def _text(question: QuestionRow) -> str:
    return one_line(question.text or "(encrypted)")


def _say(sentence: str) -> None:
    echo(sentence, file=sys.stderr, flush=True)
