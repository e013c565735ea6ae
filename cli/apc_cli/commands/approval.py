"""`apc approval`: people see and answer what handlers ask them."""

from typing import Annotated, Any
from uuid import UUID

import typer

from apc_bus.settings import BusSettings
from apc_cli.commands.group import Commands
from apc_cli.connections import find_door, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_rows
from apc_cli.output.terminal import echo
from apc_client.sending import AnswerForm, answer_over, find_question
from apc_contracts.payloads.by_type import AnswerOutcome
from apc_log.queries.questions import QuestionRow, list_questions

_SHORT = 80


def _question_id(text: str) -> UUID:
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


app = Commands(help="Questions to people: list, show, approve, deny.")

QuestionId = Annotated[str, typer.Argument(metavar="PACKET_ID", help="The question, as `apc approval list` shows it.")]
Note = Annotated[str | None, typer.Option(help="The reason, which the handler gets and the log keeps.")]
Person = Annotated[
    str | None,
    typer.Option("--as", metavar="PERSON", help="Who answers; default: the one whom this broker user speaks for."),
]


@app.command("list")
async def list_(
    session_id: Annotated[str | None, typer.Option("--session", help="Only questions of this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many questions.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print open questions, earliest deadline first."""
    async with open_log() as pool:
        rows = [_row(one, short=not as_json) for one in await list_questions(pool, session_id=session_id, limit=limit)]
    print_rows(rows, title="Open questions", as_json=as_json, empty="no question is open")


@app.command()
async def show(packet_id: QuestionId, as_json: AsJson = False) -> None:
    """Print an open question with its whole text and its data."""
    async with open_log() as pool:
        question = await find_question(pool, _question_id(packet_id))
    rows = [_row(question, short=False) | {"content": question.content, "payload_hash": question.payload_hash}]
    print_rows(rows, title=f"Question {packet_id}", as_json=as_json, empty="")


@app.command()
async def approve(packet_id: QuestionId, note: Note = None, person: Person = None) -> None:
    """Approve what is asked: the handler that waits goes on."""
    await _answer(packet_id, AnswerOutcome.APPROVED, note, person)


@app.command()
async def deny(packet_id: QuestionId, note: Note = None, person: Person = None) -> None:
    """Deny what is asked: the handler that waits goes on."""
    await _answer(packet_id, AnswerOutcome.DENIED, note, person)


async def _answer(packet_id: str, outcome: AnswerOutcome, note: str | None, person: str | None) -> None:
    door = find_door(BusSettings())
    form = AnswerForm(_question_id(packet_id), outcome, note, person)
    async with open_log() as pool, door.open() as bus:
        who = await answer_over(bus, pool, door.shards, form)
    echo(f"question {packet_id} is {outcome.value} by {who}")
