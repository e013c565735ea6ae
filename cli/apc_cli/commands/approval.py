"""`apc approval`: people see and answer what handlers ask them."""

import re
from typing import Annotated, Any
from uuid import UUID

import orjson
import typer

from apc_bus.settings import BusSettings
from apc_cli.commands.group import Commands, whole_session_id
from apc_cli.connections import find_door, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_rows, to_json
from apc_cli.output.terminal import ask_whether, echo, require_terminal
from apc_cli.system.running import run_quietly
from apc_client.sending import AnswerForm, answer_over, find_question
from apc_contracts.answers import answer_fields, check_answer_schema, read_fields
from apc_contracts.payloads.by_type import AnswerOutcome
from apc_contracts.text import one_line, printable_json
from apc_log.queries.questions import QuestionRow, list_questions

_WEIGHT = ("question", "packet_id", "asker", "due_at", "may_answer", "session_id")
_END = re.compile("[0-9a-f-]{4,35}")
"""Characters at the end of an id that name a question; `apc approval list` shows twelve where it is narrow."""
_MOST = 10_000


def _whole_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise InputUnusable(f"{text!r} is no packet id: `apc approval list` shows those of open questions") from error


async def _open_question(text: str) -> QuestionRow:
    """Return the open question with this id, or the only one whose id ends so. Raises InputUnusable."""
    end = text.removeprefix("…").lower()
    async with open_log() as pool:
        if not _END.fullmatch(end):
            return await find_question(pool, _whole_id(text))
        found = [one for one in await list_questions(pool, limit=_MOST) if str(one.packet_id).endswith(end)]
    if len(found) > 1:
        raise InputUnusable(f"{text} is the end of {' and '.join(str(one.packet_id) for one in found)}: give one whole")
    if not found:
        raise InputUnusable(f"no open question has an id that ends with {end}: `apc approval list` shows them")
    return found[0]


def _document(question: QuestionRow) -> dict[str, Any]:
    return {
        "packet_id": question.packet_id,
        "question": question.text,
        "asker": question.asker,
        "may_answer": question.may_answer,
        "due_at": question.due_at,
        "session_id": question.session_id,
        "content": question.content,
        "answer_schema": question.answer_schema,
        "payload_hash": question.payload_hash,
        "denied_by": question.denied_by,
    }


def _row(question: QuestionRow) -> dict[str, Any]:
    document = _document(question)
    schema = document.pop("answer_schema")
    if schema is not None:
        document["fields"] = [field.words for field in answer_fields(schema)]
    return document | {"question": document["question"] or "(encrypted or erased)"}


app = Commands(help="Questions to people: list, show, approve, deny.")

QuestionId = Annotated[
    str,
    typer.Argument(metavar="PACKET_ID", help="The question that `apc approval list` shows: its id or the end of it."),
]
Note = Annotated[str | None, typer.Option(help="The reason, which the handler gets and the log keeps.")]
Person = Annotated[
    str | None,
    typer.Option("--as", metavar="PERSON", help="Who answers; default: the one whom this broker user speaks for."),
]

Fields = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="NAME=VALUE", help="A field that the question asks for; give it several times."),
]
WholeAnswer = Annotated[
    str | None, typer.Option("--answer", metavar="JSON", help="All fields that the question asks for, as JSON object.")
]
IsSure = Annotated[bool, typer.Option("--yes", help="Approve without showing it and asking; needed in scripts.")]


@app.command("list")
async def list_(
    session_id: Annotated[
        str | None, typer.Option("--session", help="Only questions of this session.", parser=whole_session_id)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many questions.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print open questions, earliest deadline first."""
    async with open_log() as pool:
        questions = await list_questions(pool, session_id=session_id, limit=limit)
    rows = [{name: value for name, value in _row(one).items() if name in _WEIGHT} for one in questions]
    documents = [_document(one) for one in questions]
    empty = "no question is open"
    print_rows(rows, title="Open questions", as_json=as_json, empty=empty, weight=_WEIGHT, document=documents)


@app.command()
async def show(packet_id: QuestionId, as_json: AsJson = False) -> None:
    """Print an open question with its whole text and its data."""
    question = await _open_question(packet_id)
    title = f"Question {question.packet_id}"
    print_rows([_row(question)], title=title, as_json=as_json, empty="", document=_document(question))


@app.command()
def approve(
    packet_id: QuestionId,
    note: Note = None,
    person: Person = None,
    fields: Fields = None,
    answer: WholeAnswer = None,
    is_sure: IsSure = False,
) -> None:
    """Show what is asked with its data, and approve it once you say so: the handler that waits goes on.

    A question that asks for fields is approved with --field or --answer. Without a terminal it needs --yes and the
    whole id.
    """
    if is_sure:
        whole = _whole_id(packet_id)
        question = run_quietly(_open_question(packet_id)) if fields else None
        content = _content_of(question, fields, answer)
        form = AnswerForm(whole, AnswerOutcome.APPROVED, note, person, content=content)
    else:
        require_terminal()
        question = run_quietly(_open_question(packet_id))
        _show_question(question)
        content = _content_of(question, fields, answer)
        if content is not None:
            echo(f"answer: {printable_json(to_json(content).decode())}")
        ask_whether("Approve this?")
        form = AnswerForm(question.packet_id, AnswerOutcome.APPROVED, note, person, question.payload_hash, content)
    run_quietly(_answer(form))


def _content_of(question: QuestionRow | None, fields: list[str] | None, whole: str | None) -> dict[str, Any] | None:
    """Return the fields of an answer; None without any. Raises InputUnusable for what the question does not take."""
    schema = None if question is None else question.answer_schema
    if whole is not None:
        if fields:
            raise InputUnusable("--answer has all fields: leave --field out")
        content = _read_answer(whole)
    elif fields:
        if schema is None:
            raise InputUnusable("--field: this question asks for no fields, or nobody can read it")
        try:
            content = read_fields(schema, fields)
        except ValueError as error:
            raise InputUnusable(f"--field: {error}") from error
    elif schema is None:
        return None
    else:
        known = "; ".join(field.words for field in answer_fields(schema))
        raise InputUnusable(f"the question asks for fields, give each with --field NAME=VALUE: {known}")
    fault = None if schema is None else check_answer_schema(schema).fault(content, "answer")
    if fault is not None:
        raise InputUnusable(f"{fault.path}: {fault.message}")
    return content


def _read_answer(text: str) -> dict[str, Any]:
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InputUnusable(f"--answer is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise InputUnusable("--answer is no JSON object: give the fields by their names")
    return content


@app.command()
async def deny(packet_id: QuestionId, note: Note = None, person: Person = None) -> None:
    """Deny what is asked: the handler that waits goes on."""
    question = await _open_question(packet_id)
    await _answer(AnswerForm(question.packet_id, AnswerOutcome.DENIED, note, person))


def _show_question(question: QuestionRow) -> None:
    """Print what an approval lets its asker do: the text, which is the asker's, and the data, which alone counts."""
    echo(f"{question.asker} asks {', '.join(question.may_answer)}: {one_line(question.text or '(encrypted)')}")
    if question.content is not None:
        echo(printable_json(to_json(question.content).decode()))
    for field in () if question.answer_schema is None else answer_fields(question.answer_schema):
        echo(one_line(f"asks for {field.words}"))
    if question.denial:
        echo(question.denial)


async def _answer(form: AnswerForm) -> None:
    door = find_door(BusSettings())
    async with open_log() as pool, door.open() as bus:
        who = await answer_over(bus, pool, door.shards, form)
    echo(f"question {form.packet_id} is {form.outcome.value} by {who}")
