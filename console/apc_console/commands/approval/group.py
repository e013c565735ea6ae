"""`apc approval`: people answer what handlers ask them."""

from typing import Annotated

import typer

from apc_console.output.output import AsJson
from apc_console.output.terminal import echo
from apc_contracts.payloads.questions import AnswerOutcome

app = typer.Typer(help="Questions to people: list, show, approve, deny.", no_args_is_help=True)

QuestionId = Annotated[str, typer.Argument(metavar="PACKET_ID", help="The question, as `apc approval list` shows it.")]
Note = Annotated[str | None, typer.Option(help="The reason, which the handler gets and the log keeps.")]
Person = Annotated[
    str | None,
    typer.Option("--as", metavar="PERSON", help="Who answers; default: the one whom this broker user speaks for."),
]


@app.command("list")
def list_(
    session_id: Annotated[str | None, typer.Option("--session", help="Only questions of this session.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many questions.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print open questions, earliest deadline first."""
    from apc_console.commands.approval.view import print_questions
    from apc_console.system.running import run_quietly

    run_quietly(print_questions(session_id, limit=limit, as_json=as_json))


@app.command()
def show(packet_id: QuestionId, as_json: AsJson = False) -> None:
    """Print an open question with its whole text and its data."""
    from apc_console.commands.approval.view import print_question
    from apc_console.system.running import run_quietly

    run_quietly(print_question(packet_id, as_json=as_json))


@app.command()
def approve(packet_id: QuestionId, note: Note = None, person: Person = None) -> None:
    """Approve what is asked: the handler that waits goes on."""
    _answer(packet_id, AnswerOutcome.APPROVED, note, person)


@app.command()
def deny(packet_id: QuestionId, note: Note = None, person: Person = None) -> None:
    """Deny what is asked: the handler that waits goes on."""
    _answer(packet_id, AnswerOutcome.DENIED, note, person)


def _answer(packet_id: str, outcome: AnswerOutcome, note: str | None, person: str | None) -> None:
    from apc_console.commands.approval.view import answer
    from apc_console.system.running import run_quietly

    who = run_quietly(answer(packet_id, outcome, note, person))
    echo(f"question {packet_id} is {outcome.value} by {who}")
