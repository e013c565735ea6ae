"""`apc session`: list, show and explain sessions; start, follow, pause, resume and stop them.

The acts bring the whole system along, so each is imported when it runs.
"""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from apc_bus.settings import OrchestratorSettings, WorkerSettings
from apc_cli.commands.group import Commands, whole_run_id, whole_session_id
from apc_cli.commands.run import RunIdOption, TagOption, tags_of
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, number, print_json, print_rows, wants_json
from apc_cli.output.terminal import echo
from apc_client.run_names import RunNames
from apc_contracts.contract.contract import load_contract
from apc_contracts.contract.omissions import omissions
from apc_contracts.explanation.explain import explain as explanation_of
from apc_contracts.explanation.words import Explanation
from apc_contracts.identity.registry import Registration
from apc_contracts.payloads.budget_expression import RESOURCES
from apc_contracts.session.budgets import BudgetShare, Membership, budget_shares, memberships
from apc_contracts.session.document import SessionDocument
from apc_contracts.text import one_line
from apc_contracts.vocabulary import Signal
from apc_log.queries import HeldRow, SessionRow, get_session, list_held_packets, list_sessions
from apc_log.queries.run_cards import RunCard, cards_of
from apc_log.queries.surroundings import read_refused_usage, read_surroundings
from apc_log.registry import read_registry
from apc_log.session_loading import contract_of_session

Row = dict[str, Any]
_WEIGHT = ("title", "state", "team", "session_id", "updated_at", "tags")
"""What a line of a list shows first, where the terminal is narrow."""


def _summary(row: SessionRow, card: RunCard | None) -> Row:
    """Return a session as lists show it; its names are those of its run, None before the follower has taken it."""
    document = row.document
    return {
        "session_id": row.session_id,
        "team": None if card is None else card.team,
        "title": None if card is None else card.title,
        "tags": [] if card is None else card.tags,
        "run_id": document.run_id,
        "state": document.state,
        "is_paused": document.paused_at is not None,
        "round": document.round,
        "generation": document.generation,
        "open_deliveries": row.open_deliveries,
        "spent": {name: number(document.spent[name]) for name in RESOURCES if name in document.spent},
        "updated_at": row.updated_at,
        "why_halted": document.halt_reason if document.state == "HALTED" else None,
    }


def _details(row: SessionRow, card: RunCard | None) -> Row:
    document = row.document
    return {
        **_summary(row, card),
        "run_phase": document.run_phase.value,
        "step": document.step,
        "generation_limit": document.generation_limit,
        "max_rounds": document.max_rounds,
        "opener": document.opener,
        "opened_at": document.opened_at,
        "paused_at": document.paused_at,
    }


def _pending_acks(document: SessionDocument) -> list[Row]:
    return [
        {
            "packet_id": packet_id,
            "sender": pending.sender,
            "missing": pending.missing,
            "attempt": pending.attempt,
            "retry_limit": pending.retry_limit,
            "due": document.deadlines.get(f"ack:{packet_id}:{pending.attempt}"),
        }
        for packet_id, pending in document.pending_acks.items()
    ]


def _budget(share: BudgetShare) -> Row:
    """Return a share with its amounts as people write them."""
    return {name: number(value) if isinstance(value, float) else value for name, value in asdict(share).items()}


def _member(member: Membership, registry: Mapping[str, Registration]) -> Row:
    """Return a member; the swarm of one that the session names alone is that of its registration."""
    known = registry.get(member.agent_id)
    return asdict(member) | {"swarm": member.swarm or (known.swarm_id if known else None)}


def _held(row: HeldRow) -> Row:
    return {
        "packet_id": row.packet_id,
        "type": row.packet_type,
        "sender": row.sender_agent_id,
        "since": row.judged_at,
    }


# `apc session explain`: where a session stands, what it waits for, and what would move it.


def _document(explanation: Explanation) -> dict[str, object]:
    return {
        "standing": explanation.standing,
        "waits": [{**asdict(wait), "sentence": wait.sentence} for wait in explanation.waits],
        "remarks": explanation.remarks,
    }


def _lines(session_id: str, explanation: Explanation) -> list[str]:
    lines = [f"Session {session_id} is {explanation.standing}."]
    for wait in explanation.waits:
        lines += [f"- {wait.sentence}", f"  {wait.moves}"]
    return [*lines, *(f"- {remark}" for remark in explanation.remarks)]


# `apc session`: list, show and explain sessions; start, follow, pause, resume and stop them.

app = Commands(help="List, show, explain, start, follow, pause, resume and stop sessions.")

SessionId = Annotated[str, typer.Argument(metavar="SESSION_ID", help="The session.", parser=whole_session_id)]
Sender = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="AGENT", help="The agent that sends it; default: the first operator of this broker user."
    ),
]
Timeout = Annotated[float | None, typer.Option(min=0, help="Seconds to wait; default until the end.")]
Reason = Annotated[str | None, typer.Option(help="The reason, which the log keeps.")]


@app.command("list")
async def list_(
    run_id: Annotated[str | None, typer.Option(help="Only this run.", parser=whole_run_id)] = None,
    running: Annotated[bool, typer.Option("--running", help="Only sessions that have not ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many sessions.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print sessions, the latest first: team, title and tags of its run, state, what was spent, why one was halted."""
    default = load_contract(OrchestratorSettings().contract)
    async with open_log() as pool:
        sessions = await list_sessions(pool, run_id=run_id, only_running=running, limit=limit)
        cards = await cards_of(pool, list({row.document.run_id for row in sessions}))
        digests = {row.document.contract_hash for row in sessions}
        left_out = {digest: omissions(await contract_of_session(pool, digest, default)) for digest in digests}
    rows = [_summary(row, cards.get(row.document.run_id)) for row in sessions]
    if any(left_out.values()):
        for row, session in zip(rows, sessions, strict=True):
            row["contract_leaves_out"] = len(left_out[session.document.contract_hash])
    print_rows(rows, title="sessions", as_json=as_json, empty="the log holds no such session", weight=_WEIGHT)


@app.command()
async def show(session_id: SessionId, as_json: AsJson = False) -> None:
    """Print a session: state, contract, budgets and what is left, members, pending ACKs, deadlines, held packets.

    `refused` of a budget is what agents reported as spent, and what was not charged.
    """
    default = load_contract(OrchestratorSettings().contract)
    async with open_log() as pool:
        row = await get_session(pool, session_id)
        if row is None:
            raise InputUnusable(f"the log holds no session {session_id!r}: `apc session list` shows them")
        registry = await read_registry(pool)
        cards = await cards_of(pool, [row.document.run_id])
        held = await list_held_packets(pool, session_id)
        contract = await contract_of_session(pool, row.document.contract_hash, default)
        uncharged = [(one.task_id, one.resource, one.refused) for one in await read_refused_usage(pool, session_id)]
    sections = {
        "session": [_details(row, cards.get(row.document.run_id))],
        "contract": [{"name": contract.name, "sha256": contract.hash.hex(), "left_out": list(omissions(contract))}],
        "budgets": [_budget(one) for one in budget_shares(row.document, datetime.now(UTC), uncharged)],
        "members": [_member(one, registry) for one in memberships(row.document)],
        "pending_acks": _pending_acks(row.document),
        "deadlines": [{"kind": kind, "due": due} for kind, due in sorted(row.document.deadlines.items())],
        "held": [_held(one) for one in held],
    }
    if wants_json(as_json):
        print_json({**sections, "session": sections["session"][0]})
        return
    for title, rows in sections.items():
        print_rows(rows, title=title.replace("_", " "), as_json=False, empty=f"no {title.replace('_', ' ')}")


@app.command()
async def explain(session_id: SessionId, as_json: AsJson = False) -> None:
    """Say in words where a session stands, what it waits for, from whom, until when, and what would move it."""
    default = load_contract(OrchestratorSettings().contract)
    async with open_log() as pool:
        try:
            row = await get_session(pool, session_id)
        except msgspec.ValidationError as error:
            raise InputUnusable(f"the state of session {session_id!r} is of another release: {error}") from error
        if row is None:
            raise InputUnusable(
                f"the log holds no session {session_id!r}: `apc session list` shows them; `apc packet refused` shows "
                "whether its START was refused"
            )
        contract = await contract_of_session(pool, row.document.contract_hash, default)
        around = await read_surroundings(pool, session_id, WorkerSettings().heartbeat_silence)
    explanation = explanation_of(row.document, around, contract)
    if wants_json(as_json):
        print_json({"session_id": session_id, **_document(explanation)})
    else:
        for line in _lines(session_id, explanation):
            echo(one_line(line) if not line.startswith("  ") else f"  {one_line(line)}")


@app.command()
async def start(
    what: Annotated[
        str,
        typer.Argument(metavar="MODULE:TEAM|SPEC", help="A team, or a spec as JSON; - reads it from standard input."),
    ],
    file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="The team's input as JSON; - reads standard input.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Of a team: the same key and input lead to the same session.")] = None,
    session_id: Annotated[str | None, typer.Option(help="Of a spec: the id of the session; default a new one.")] = None,
    run_id: RunIdOption = None,
    tag: TagOption = None,
    task_id: Annotated[str | None, typer.Option(help="Of a spec: the task; default the first of task_ids.")] = None,
    sender: Sender = None,
    reason: Reason = None,
) -> None:
    """Open a session of a team with its input, or of a spec with SIGNAL START alone; print the session's id.

    A team's agents run already. Agents of a spec that are not registered are refused before it is sent.
    """
    from apc_cli.commands.session_running import StartForm, start_session, start_team

    names = RunNames.of(run_id, tags_of(tag or ()))
    if file is not None:
        echo(await start_team(what, file, key, sender, names))
    elif key is not None:
        raise InputUnusable("--key is of a team, which needs its input: give --input FILE, or - for standard input")
    else:
        echo(await start_session(StartForm(Path(what), session_id, task_id, sender, reason, names)))


@app.command()
async def wait(session_id: SessionId, timeout: Timeout = None) -> None:  # noqa: ASYNC109
    """Wait until a session has closed. Exits with 3 when it halted, with 5 when it goes on after --timeout."""
    from apc_cli.commands.session_running import wait_for_end

    echo(await wait_for_end(session_id, timeout))


@app.command()
async def events(session_id: SessionId, as_json: AsJson = False) -> None:
    """Print each packet of a session as the log gets it, until the session has ended: verdict, way, content.

    At a terminal a line says what each packet contains. In JSON the content is typed data, or what a question, its
    answer or an ERROR says.
    """
    from apc_cli.commands.session_running import print_events

    await print_events(session_id, as_json=as_json)


@app.command()
async def result(session_id: SessionId, timeout: Timeout = None) -> None:  # noqa: ASYNC109
    """Wait until a session has closed and print its result as JSON. Exits as `apc session wait`."""
    from apc_cli.commands.session_running import print_result

    await print_result(session_id, timeout)


@app.command()
async def pause(session_id: SessionId, sender: Sender = None, reason: Reason = None) -> None:
    """Pause a session and its deadlines; packets that arrive meanwhile are held."""
    await _send(session_id, Signal.PAUSE, sender, reason)


@app.command()
async def resume(session_id: SessionId, sender: Sender = None, reason: Reason = None) -> None:
    """Resume a paused session; held packets are judged in their order of arrival."""
    await _send(session_id, Signal.RESUME, sender, reason)


@app.command()
async def stop(session_id: SessionId, sender: Sender = None, reason: Reason = None) -> None:
    """End a session permanently (HALTED)."""
    await _send(session_id, Signal.STOP, sender, reason)


async def _send(session_id: str, signal: Signal, sender: str | None, reason: str | None) -> None:
    from apc_cli.commands.session_control import signal_session

    state = await signal_session(session_id, signal, sender, reason)
    echo(f"{signal} accepted: session {session_id} is {state}")
