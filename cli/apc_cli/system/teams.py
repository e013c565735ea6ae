"""Teams in a running system: their schemas, their members, and a client that starts their sessions."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, timedelta
from functools import partial
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
from apc_cli.output.files import StandardInput
from apc_cli.output.output import tell
from apc_cli.output.terminal import echo
from apc_cli.system.running import configure
from apc_cli.system.supervisor import AgentProcess, run_supervised
from apc_cli.system.system import has_broker, refuse_people
from apc_cli.system.up import check_console, console_beside
from apc_client import Client
from apc_client.errors import SessionHalted
from apc_client.registration import register_file, register_folder, register_schemas, registered_client
from apc_client.run_names import RunNames
from apc_client.session import ClientSession
from apc_contracts.answers import answer_fields, check_answer_schema
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
    lines.forget_typed()
    _say(f"{person} is asked by {question.asker}: {_text(question)}")
    if data := data_of(question):
        _say(f"about: {data}")
    if question.denial:
        _say(question.denial)
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
    approved, content = word.lower() in _YES, None
    if approved and question.answer_schema is not None:
        content = await _read_fields(lines, question.answer_schema)
        if content is None:
            _say(f"nobody answers here: the standard input has ended. {_waiting(question)}")
            return False
    try:
        await client.answer(
            question.packet_id, approved=approved, note=note.strip() or None, person=person, answer=content
        )
    except InputUnusable as error:  # its time is over, or somebody else was faster
        _say(str(error))
    return True


async def _read_fields(lines: StandardInput, schema: dict[str, Any]) -> dict[str, Any] | None:
    """Ask for each field of an answer, and once more for one that does not fit; None at the end of the input."""
    fields, checked = {one.name: one for one in answer_fields(schema)}, check_answer_schema(schema)
    answer, missing = dict[str, Any](), list(fields)
    while missing:
        field = fields[missing[0]]
        _say(one_line(field.words) + ("; one line each, an empty one ends them" if field.kind == "texts" else ""))
        line = await lines.read_line()
        if line is None:
            return None
        try:
            if line.strip():
                value = field.read(line)
                answer[field.name] = [*answer.get(field.name, ()), *value] if field.kind == "texts" else value
                missing = missing if field.kind == "texts" else missing[1:]
            else:
                missing = missing[1:]
        except ValueError as error:
            _say(one_line(str(error)))
        fault = None if missing else checked.fault(answer, "answer")
        if fault is not None:
            _say(one_line(f"{fault.path}: {fault.message}"))
            name = re.split(r"[.\[]", f"{fault.path.removeprefix('answer')}.")[1]
            missing = [name] if name in fields else list(fields)
            for one in missing:
                answer.pop(one, None)
    return answer


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
    names: RunNames,
    people: Mapping[str, str],
    ui: bool = False,
) -> None:
    """Run a team on one input; show the session's id, and the schema and content of its result.

    Args:
        show: takes the result.
        names: the run's id and its tags.
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
    content = read_input(team, file)
    if ui:
        check_console()
    async with console_beside() as console:
        try:
            async with open_team(name, team, people) as client:
                if ui:
                    await console.open()
                session = await client.start(team, content, key=key, run_id=names.run_id, metadata=names.tags)
                outcome = await _outcome(client, session, people)
                doubts = await session.doubts()
        except SessionHalted as halted:
            if ui:
                await console.stay(partial(tell, [str(halted)]))
            raise
        document = outcome_document(session.session_id, result_document(outcome), doubts)
        await console.stay(partial(show, document))


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
