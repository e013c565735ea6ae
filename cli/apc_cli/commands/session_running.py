"""`apc session start|wait|events|result`: open a session, follow it to its end, and print what came of it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from apc_agents.team import Team, load_team
from apc_bus.settings import BusSettings
from apc_cli.commands.session_control import operator_packet
from apc_cli.connections import NO_SESSIONS, broker_user, open_bus, open_log, require_broker
from apc_cli.errors import InputUnusable
from apc_cli.output.files import read_bytes
from apc_cli.output.output import print_json, show, tell, wants_json
from apc_cli.output.terminal import BlockPrinter, echo, own_sentences
from apc_client.client import check_key
from apc_client.connecting import connect
from apc_client.errors import StillRunning
from apc_client.operator import first_operator
from apc_client.run_names import RunNames
from apc_client.sending import send_packet
from apc_client.session import ClientSession, SessionEvent
from apc_contracts.content import Schemas, payload_line
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.judging.facts import find_unregistered
from apc_contracts.payloads.by_type import (
    AgentRequest,
    DecisionPayload,
    ErrorPayload,
    MessagePayload,
    Payload,
    Result,
    SignalPayload,
)
from apc_contracts.payloads.session_signals import SessionSpec, TaskSessionSpec
from apc_contracts.session.document import TaskDocument
from apc_contracts.text import printable_json
from apc_contracts.vocabulary import RunPhase, Signal
from apc_contracts.wire.parsing import refusal_of
from apc_contracts.wire.strict_json import read_strict_json
from apc_log.queries import get_session
from apc_log.queries.lineage import list_stale_decisions
from apc_log.registry import read_schemas, registered_agents

# The input of a team as a file has it, and its result as commands print it.


def read_input(team: Team, file: Path) -> BaseModel:
    """Return the input of a session, which a file holds. Raises InputUnusable with the file and the field's place."""
    body = read_bytes(file)
    if team.input is None:
        raise InputUnusable(f"team {team.name} does not say its input: give Team(..., input=Model)")
    try:
        return team.input.model_validate(orjson.loads(body), by_alias=True)
    except orjson.JSONDecodeError as error:
        raise InputUnusable(f"the input {file} is no JSON: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "$"
        raise InputUnusable(f"the input {file} is no {team.input.__name__}: {place}: {first['msg']}") from error


def result_document(found: Result | None) -> dict[str, Any] | None:
    """Return a result as the commands print it; None when the DONE carried none."""
    return None if found is None else {"schema": found.schema_id, "content": dict(found.content)}


# Follow a session.


async def wait_for_end(session_id: str, timeout: float | None) -> str:  # noqa: ASYNC109
    """Wait until the session has closed and return its state.

    Raises:
        InputUnusable: the log does not hold it.
        SessionHalted: it ended without a result.
        StillRunning: `timeout` seconds passed.
    """
    await _outcome(session_id, timeout)
    return "CLOSED"


async def print_result(session_id: str, timeout: float | None) -> None:  # noqa: ASYNC109
    """Wait until the session has closed and print its result as JSON. Raises as `wait_for_end`.

    What is open to doubt about it is named in it and on standard error.
    """
    result = result_document(await _outcome(session_id, timeout))
    async with open_log() as pool:
        row = await get_session(pool, session_id)
        done = row.document.work.done if row is not None and isinstance(row.document, TaskDocument) else None
        stale = await list_stale_decisions(pool, session_id, packet_id=done, limit=1)
        doubts = await ClientSession(pool, session_id).doubts()
    document = outcome_document(session_id, result, doubts)
    print_json(document | {"stale": asdict(stale[0])} if stale else document)


def outcome_document(session_id: str, result: dict[str, Any] | None, doubts: tuple[str, ...]) -> dict[str, Any]:
    """Return what `apc run` and `apc session result` print; say what is open to doubt on standard error, too."""
    document = {"session": session_id, "result": result}
    if not doubts:
        return document
    tell([f"the result is open to doubt: {doubt}" for doubt in doubts])
    return document | {"doubts": doubts}


async def print_events(session_id: str, *, as_json: bool) -> None:
    """Print each packet of the session as the log gets it, until the session ends. Raises InputUnusable."""
    printer = None if wants_json(as_json) else BlockPrinter()
    async with open_log() as pool:
        if await get_session(pool, session_id) is None:
            raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
        schemas = await read_schemas(pool)
        async for event in ClientSession(pool, session_id).events():
            if printer is None:
                line = orjson.dumps(_document(event), default=show, option=orjson.OPT_UTC_Z)
                echo(printable_json(line.decode()), flush=True)
            else:
                _print_block(printer, event, schemas)


async def _outcome(session_id: str, timeout: float | None) -> Result | None:  # noqa: ASYNC109
    async with open_log() as pool:
        if await get_session(pool, session_id) is None:
            raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
        try:
            return await ClientSession(pool, session_id).outcome(timeout=timeout)
        except TimeoutError as error:
            raise StillRunning(session_id, timeout or 0) from error


def _document(event: SessionEvent) -> dict[str, Any]:
    schema, content = _content(event)
    return {
        "at": event.judged_at,
        "packet_id": event.packet_id,
        "type": event.packet_type,
        "sender": event.sender,
        "recipients": event.recipients,
        "verdict": event.verdict,
        "code": event.refusal_code,
        "refusal": event.refusal,
        "schema": schema,
        "content": content,
    }


def _content(event: SessionEvent) -> tuple[str | None, Any]:
    """Return schema and content of typed data, or what a question, its answer or an ERROR says, without a schema.

    None for both in other packets and in sealed ones.
    """
    payload = None if event.packet is None else event.packet.payload
    typed = _typed(payload)
    if typed is not None:
        return typed.schema_id, dict(typed.content)
    if isinstance(payload, ErrorPayload):
        return None, {"error_code": payload.error_code, "message": payload.message}
    if isinstance(payload, SignalPayload):
        return None, _said(payload)
    return None, None


def _typed(payload: Payload | None) -> MessagePayload | AgentRequest | Result | None:
    if isinstance(payload, SignalPayload):
        return payload.request if payload.answer is None else payload.answer.result
    if isinstance(payload, DecisionPayload):
        return payload.result
    return payload if isinstance(payload, MessagePayload) else None


def _said(signal: SignalPayload) -> dict[str, Any] | None:
    """Return the text and data of a question, or the outcome and note of an answer; None for other signals."""
    if (question := signal.question) is not None:
        data = {} if question.content is None else {"data": dict(question.content)}
        return {"question": question.text} | data
    if (answer := signal.answer) is not None:
        return {"outcome": answer.outcome.value, "note": answer.note}
    return None


LONGEST = 200
"""Characters of a packet's line."""


def _print_block(printer: BlockPrinter, event: SessionEvent, schemas: Schemas) -> None:
    said = (
        "(its body is encrypted)"
        if event.packet is None
        else payload_line(event.packet_type, event.packet.payload, schemas, width=LONGEST)
    )
    way = f"{event.sender} → {', '.join(event.recipients) or '-'}"
    refusal = event.refusal
    refused = [] if refusal is None else [refusal["message"], *own_sentences(refusal)]
    printer.print(event.judged_at, event.verdict, [event.packet_type, way, event.refusal_code or ""], [said, *refused])


# `apc session start`: open a session of a team, or of a spec, and print the gate's verdict.


@dataclass(frozen=True, slots=True)
class StartForm:
    """What the command line says; an id that is None is new."""

    file: Path
    session_id: str | None
    task_id: str | None
    agent_id: str | None
    reason: str | None
    names: RunNames


async def start_team(name: str, file: Path, key: str | None, operator: str | None, names: RunNames) -> str:
    """Start a session of a team that runs, over RabbitMQ; return the session's id.

    Raises:
        AgentNotFound, AgentInvalid: no such team.
        InputUnusable: the key is empty, no broker is configured, the input does not fit, or nobody may start sessions.
        SessionRefused, KeyConflict: the gate refuses, or the key has another input.
        ServiceAway: broker, database or orchestrator do not answer.
    """
    check_key(key)
    team = load_team(name)
    content = read_input(team, file)
    require_broker(BusSettings(), NO_SESSIONS)
    async with connect(operator=operator) as client:
        started = await client.start(team, content, key=key, run_id=names.run_id, metadata=names.tags)
        return started.session_id


async def start_session(form: StartForm) -> str:
    """Send START as a registered operator and wait for the verdict; return the session's id.

    Raises:
        InputUnusable: the file is no SessionSpec, it names agents that are not registered, or the gate refuses.
        ServiceAway: broker, database or orchestrator do not answer.
    """
    spec, settings = read_spec(form.file), BusSettings()
    require_broker(settings, NO_SESSIONS)
    session_id = form.session_id or str(new_packet_id())
    async with open_log() as pool:
        unknown = find_unregistered(spec, {one.agent_id for one in await registered_agents(pool)})
        if unknown:
            sentences = "; ".join(one.sentence for one in unknown)
            raise InputUnusable(f"START was not sent: {sentences}. `apc agent add` registers an agent")
        packet = operator_packet(
            await first_operator(pool, broker_user(settings), form.agent_id),
            SignalPayload(signal=Signal.START, session=spec, reason=form.reason),
            session_id=session_id,
            run_id=form.names.run_id or session_id,
            task_id=form.task_id or (spec.task_ids[0] if spec.task_ids else session_id),
            run_phase=RunPhase.RESEARCH,
            metadata=form.names.tags or None,
        )
        async with open_bus(settings) as bus:
            answer = await send_packet(bus, pool, packet, settings.shards)
    if answer.reason is not None:
        raise InputUnusable(f"the gate refused START: {answer.reason}")
    return session_id


def read_spec(file: Path) -> SessionSpec | TaskSessionSpec:
    """Return the spec in a JSON file; `-` is the standard input. Raises InputUnusable with field and remedy.

    With a contract and without swarms it is a TaskSessionSpec, else a SessionSpec.
    """
    if ":" in str(file) and not file.exists():
        raise InputUnusable(
            f"there is no file {file}; a team needs its input: give --input FILE, or - for standard input"
        )
    try:
        document = read_strict_json(body := read_bytes(file))
        is_task = isinstance(document, dict) and "contract" in document and "swarms" not in document
        return (TaskSessionSpec if is_task else SessionSpec).model_validate_json(body)
    except ValidationError as error:
        refused = refusal_of(error, frozenset())
    except PacketRefused as error:
        refused = error
    raise InputUnusable(f"{file} is no SessionSpec: {refused.path}: {refused.message}")
