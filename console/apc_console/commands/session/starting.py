"""`apc session start`: open a session of a team, or of a spec, and print the gate's verdict."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from apc_agents.team import load_team
from apc_bus.settings import BusSettings
from apc_client.connecting import connect
from apc_client.operator import first_operator
from apc_client.sending import send_packet
from apc_console.commands.session.session_control import operator_packet
from apc_console.connections.broker import broker_user, open_bus
from apc_console.connections.database import open_log
from apc_console.connections.door import require_broker
from apc_console.errors import InputUnusable
from apc_console.output.files import read_bytes
from apc_console.system.team_input import read_input
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.judging.facts import find_unregistered
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.session_signals import SessionSpec, TaskSessionSpec
from apc_contracts.vocabulary import RunPhase, Signal
from apc_contracts.wire.parsing import refusal_of
from apc_contracts.wire.strict_json import read_strict_json
from apc_log.registry import registered_agents


@dataclass(frozen=True, slots=True)
class StartForm:
    """What the command line says; an id that is None is new."""

    file: Path
    session_id: str | None
    run_id: str | None
    task_id: str | None
    agent_id: str | None
    reason: str | None


async def start_team(name: str, file: Path, key: str | None, operator: str | None) -> str:
    """Start a session of a team that runs, over RabbitMQ; return the session's id.

    Raises:
        AgentNotFound, AgentInvalid: no such team.
        InputUnusable: no broker is configured, the input does not fit, or nobody may start sessions.
        SessionRefused, KeyConflict: the gate refuses, or the key has another input.
        ServiceAway: broker, database or gate do not answer.
    """
    team = load_team(name)
    content = read_input(team, read_bytes(file))
    require_broker(BusSettings())
    async with connect(operator=operator) as client:
        return (await client.start(team, content, key=key)).session_id


async def start_session(form: StartForm) -> str:
    """Send START as a registered operator and wait for the verdict; return the session's id.

    Raises:
        InputUnusable: the file is no SessionSpec, it names agents that are not registered, or the gate refuses.
        ServiceAway: broker, database or gate do not answer.
    """
    spec, settings = read_spec(form.file), BusSettings()
    require_broker(settings)
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
            run_id=form.run_id or session_id,
            task_id=form.task_id or (spec.task_ids[0] if spec.task_ids else session_id),
            run_phase=RunPhase.RESEARCH,
        )
        async with open_bus(settings) as bus:
            answer = await send_packet(bus, pool, packet, settings.shards)
    if answer.reason is not None:
        raise InputUnusable(f"the gate refused START: {answer.reason}. Remedy: {remedy_of(answer.code or '')}")
    return session_id


def read_spec(file: Path) -> SessionSpec | TaskSessionSpec:
    """Return the spec in a JSON file; `-` is the standard input. Raises InputUnusable with field and remedy.

    With a contract and without swarms it is a TaskSessionSpec, else a SessionSpec.
    """
    try:
        document = read_strict_json(body := read_bytes(file))
        is_task = isinstance(document, dict) and "contract" in document and "swarms" not in document
        return (TaskSessionSpec if is_task else SessionSpec).model_validate_json(body)
    except ValidationError as error:
        refused = refusal_of(error, frozenset())
    except PacketRefused as error:
        refused = error
    raise InputUnusable(f"{file} is no SessionSpec: {refused.path}: {refused.message}")
