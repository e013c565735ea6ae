"""`apc session wait|events|result`: follow a session to its end, and print what came of it."""

import sys
from dataclasses import asdict
from typing import Any

import orjson

from apc_client.errors import StillRunning
from apc_client.session import ClientSession, SessionEvent
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.blocks import BlockPrinter
from apc_console.output.cells import show
from apc_console.output.gist import gist_of
from apc_console.output.output import print_json
from apc_console.output.terminal import echo
from apc_console.system.team_input import result_document
from apc_contracts.payloads.by_type import DecisionPayload, ErrorPayload, MessagePayload, Payload, SignalPayload
from apc_contracts.payloads.measurements import Result
from apc_contracts.payloads.questions import AgentRequest
from apc_contracts.session.document import TaskDocument
from apc_contracts.text import one_line, printable_json
from apc_log.queries import get_session
from apc_log.watching import list_stale_decisions


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

    A DECISION that rests on a retracted packet is named in it and on standard error.
    """
    result = result_document(await _outcome(session_id, timeout))
    async with open_log() as pool:
        row = await get_session(pool, session_id)
        done = row.document.work.done if row is not None and isinstance(row.document, TaskDocument) else None
        stale = await list_stale_decisions(pool, session_id, packet_id=done, limit=1)
    document = {"session": session_id, "result": result}
    print_json(document | {"stale": asdict(stale[0])} if stale else document)
    if stale:
        echo(one_line(f"apc: {stale[0].words}"), file=sys.stderr)


async def print_events(session_id: str, *, as_json: bool) -> None:
    """Print each packet of the session as the log gets it, until the session ends. Raises InputUnusable."""
    printer = None if as_json or not sys.stdout.isatty() else BlockPrinter()
    async with open_log() as pool:
        if await get_session(pool, session_id) is None:
            raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
        async for event in ClientSession(pool, session_id).events():
            if printer is None:
                line = orjson.dumps(_document(event), default=show, option=orjson.OPT_UTC_Z)
                echo(printable_json(line.decode()), flush=True)
            else:
                _print_block(printer, event)


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


def _print_block(printer: BlockPrinter, event: SessionEvent) -> None:
    said = "(its body is encrypted)" if event.packet is None else gist_of(event.packet.payload)
    way = f"{event.sender} → {', '.join(event.recipients) or '-'}"
    printer.print(event.judged_at, event.verdict, [event.packet_type, way, event.refusal_code or ""], [said])
