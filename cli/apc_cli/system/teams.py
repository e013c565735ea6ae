"""Teams in a running system: their schemas, their members, and a client that starts their sessions."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import orjson

from apc_agents.team import Team, load_members, load_team
from apc_bus.concurrency import cancelled
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings
from apc_cli.commands.session_running import outcome_document, read_input, result_document
from apc_cli.connections import open_bus
from apc_cli.errors import InputUnusable
from apc_cli.output.files import StandardInput, read_bytes
from apc_cli.output.output import tell
from apc_cli.output.terminal import echo
from apc_cli.system.running import configure
from apc_cli.system.supervisor import AgentProcess, run_supervised
from apc_cli.system.system import has_broker, refuse_people
from apc_cli.system.up import check_console, console_beside
from apc_client import Client
from apc_client.errors import SessionHalted
from apc_client.registration import register_file, register_folder, register_schemas, registered_client
from apc_client.session import ClientSession
from apc_contracts.identity.registry import CLIENT
from apc_contracts.text import one_line, printable_json
from apc_log.queries.questions import QuestionRow

# Ask the people who sit at this terminal what handlers ask them.

PAUSE: Final = timedelta(milliseconds=100)
"""Between two looks at the open questions."""
_YES: Final = frozenset({"y", "yes"})
_NO: Final = frozenset({"", "n", "no"})
_OF_SEVERAL: Final = re.compile(r" \(\d+ of \d+, each by another person\)$")
"""How each of the questions of one `ctx.ask(approvals=n)` ends."""


async def answer_here(client: Client, session_id: str, people: Collection[str]) -> None:
    """Print each question of a session once; answer those to one of these people with a line of the standard input.

    Of the others, and of all when the standard input has ended, it says how they are answered.
    """
    lines, asked = StandardInput(), set[UUID]()
    answered: dict[tuple[str, str, str], set[str]] = {}
    while True:
        for question in await client.questions(session_id):
            # Of several people who are asked the same, each answers once.
            done = answered.setdefault((question.asker, _OF_SEVERAL.sub("", _text(question)), data_of(question)), set())
            able = [one for one in question.may_answer if one in people and one not in done]
            if question.packet_id in asked:
                continue
            asked.add(question.packet_id)
            if not able:
                _say(_waiting(question))
                continue
            done.add(able[0])
            if not await _answer(client, lines, question, able[0]):
                people = ()
        await asyncio.sleep(PAUSE.total_seconds())


async def _answer(client: Client, lines: StandardInput, question: QuestionRow, person: str) -> bool:
    """Ask until the answer is yes or no; return False at the end of the standard input."""
    _say(f"{person} is asked by {question.asker}: {_text(question)}")
    if data := data_of(question):
        _say(f"about: {data}")
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


def data_of(question: QuestionRow) -> str:
    """Return what a question is about, as one line of JSON; "" if only its text is known.

    The asker writes the text as it likes. What an approval lets it emit is this alone.
    """
    if question.content is None:
        return ""
    return printable_json(orjson.dumps(question.content).decode())


def _say(sentence: str) -> None:
    echo(sentence, file=sys.stderr, flush=True)


async def run_team(
    name: str,
    file: Path,
    show: Callable[[dict[str, Any]], None],
    *,
    key: str | None = None,
    people: Mapping[str, str],
    ui: bool = False,
) -> None:
    """Run a team on one input; show the session's id, and the schema and content of its result.

    Args:
        show: takes the result.
        people: the role of each person who answers at this terminal, by id.
        ui: serve the web console while it runs, and until Ctrl-C.

    Raises:
        AgentNotFound, AgentInvalid: no such team, or one that cannot work.
        InputUnusable: the input is no JSON of a model that the entry takes, or people are named with a broker.
        SessionRefused, SessionHalted, KeyConflict: how the session ended.
    """
    settings = ConsoleSettings()
    # What goes well needs no lines beside the result.
    configure(settings.log_level if "log_level" in settings.model_fields_set else "WARNING")
    team = load_team(name)
    if people and str(file) == "-":
        raise InputUnusable("--person: answers come from the standard input; give --input a file")
    content = read_input(team, read_bytes(file))
    if ui:
        check_console()
    async with console_beside() as console:
        try:
            async with open_team(name, team, people) as client:
                if ui:
                    await console.open()
                session = await client.start(team, content, key=key)
                outcome = await _outcome(client, session, people)
                doubts = await session.doubts()
        except SessionHalted as halted:
            if ui:
                tell([str(halted)])
                await console.stay()
            raise
        show(outcome_document(session.session_id, result_document(outcome), doubts))
        await console.stay()


async def _outcome(client: Client, session: ClientSession, people: Mapping[str, str]) -> Any:
    """Wait for the session's end; meanwhile people answer at this terminal, or are told that they are asked."""
    asking = asyncio.create_task(answer_here(client, session.session_id, people))
    try:
        return await session.outcome()
    finally:
        await cancelled(asking)


@asynccontextmanager
async def open_team(name: str, team: Team, people: Mapping[str, str]) -> AsyncIterator[Client]:
    """Start everything with a team in it, in this process or in supervised ones, and yield a client.

    Raises InputUnusable for people with a broker, and what `connect_in_process` or `run_supervised` raises.
    """
    settings, database = BusSettings(), DatabaseSettings()
    if not has_broker(settings, database):
        from apc_client.connecting import connect_in_process

        async with connect_in_process(settings, database, people) as local:
            yield local
        return
    refuse_people(people)
    processes = [AgentProcess(member) for member in load_members(name)]
    async with run_supervised(settings, database, processes) as system, open_bus(settings) as bus:
        if settings.contracts is not None:
            await register_folder(bus, system.pool, settings.shards, settings.contracts)
        await register_schemas(bus, system.pool, settings.shards, team.documents)
        if team.contract_file is not None:
            await register_file(bus, system.pool, settings.shards, team.contract_file)
        async with registered_client(bus, system.pool, settings.shards) as own:
            yield Client(bus, system.pool, own.registration, settings.shards, key=own.key, owner=CLIENT)
