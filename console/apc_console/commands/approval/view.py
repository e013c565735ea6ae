"""`apc approval list|show|approve|deny`: open questions on the terminal, and their answers."""

from typing import Any
from uuid import UUID

from apc_bus.settings import BusSettings
from apc_client.sending import AnswerForm, answer_over, find_question
from apc_console.connections.database import open_log
from apc_console.connections.door import find_door
from apc_console.errors import InputUnusable
from apc_console.output.output import print_rows
from apc_contracts.payloads.questions import AnswerOutcome
from apc_log.queries.questions import QuestionRow, list_questions

_SHORT = 80


async def print_questions(session_id: str | None, *, limit: int, as_json: bool) -> None:
    """Print open questions, earliest deadline first."""
    async with open_log() as pool:
        rows = [_row(one, short=not as_json) for one in await list_questions(pool, session_id=session_id, limit=limit)]
    print_rows(rows, title="Open questions", as_json=as_json, empty="no question is open")


async def print_question(packet_id: str, *, as_json: bool) -> None:
    """Print one open question with its whole text and data. Raises InputUnusable."""
    async with open_log() as pool:
        question = await find_question(pool, question_id(packet_id))
    rows = [_row(question, short=False) | {"content": question.content, "payload_hash": question.payload_hash}]
    print_rows(rows, title=f"Question {packet_id}", as_json=as_json, empty="")


async def answer(packet_id: str, outcome: AnswerOutcome, note: str | None, person: str | None) -> str:
    """Answer a question and return who did. Raises InputUnusable, ServiceAway."""
    door = find_door(BusSettings())
    form = AnswerForm(question_id(packet_id), outcome, note, person)
    async with open_log() as pool, door.open() as bus:
        return await answer_over(bus, pool, door.shards, form)


def question_id(text: str) -> UUID:
    """Return the id of a question. Raises InputUnusable."""
    try:
        return UUID(text)
    except ValueError as error:
        raise InputUnusable(f"{text!r} is no packet id: `apc approval list` shows those of open questions") from error


def _row(question: QuestionRow, *, short: bool) -> dict[str, Any]:
    text = question.text or "(encrypted or erased)"
    return {
        "packet_id": str(question.packet_id),
        "session_id": question.session_id,
        "asker": question.asker,
        "may_answer": ", ".join(question.may_answer),
        "due_at": question.due_at,
        "question": text[:_SHORT] if short else text,
    }
