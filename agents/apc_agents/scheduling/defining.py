"""What `@agent.every` makes: the schedule, and the handler that takes its Ticks and nobody else's."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from pydantic import ValidationError

from apc_agents.errors import AgentInvalid, Reject
from apc_agents.scheduling.cron import CronInvalid, parse_cron
from apc_agents.scheduling.schedule import Misfire, Schedule, Tick, tick_id
from apc_agents.signature import AnyHandler, check_typed
from apc_agents.typed.handlers import typed_handler
from apc_contracts.contract_model import ID_PATTERN
from apc_contracts.packet import Packet
from apc_contracts.payloads.session_signals import TaskSessionSpec


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """What `@agent.every` is told beside the cron line."""

    timezone: str
    misfire: str
    members: tuple[str, ...]
    contract: str
    deadline: timedelta


def make_schedule(agent_id: str, name: str, line: str, options: ScheduleOptions) -> Schedule:
    """Return the schedule. Raises AgentInvalid, which names the schedule and says what is wrong."""
    what = f"agent {agent_id}: schedule {name!r}"
    if not re.match(ID_PATTERN, name):
        raise AgentInvalid(f"{what} has a name that is no id: 1 to 64 letters, digits, '.', '_', ':' or '-'")
    try:
        cron = parse_cron(line, options.timezone, datetime.now(UTC))
        policy = Misfire(options.misfire)
        spec = TaskSessionSpec(
            contract=options.contract,
            members=tuple(dict.fromkeys((agent_id, *options.members))),
            deciders=(agent_id,),
            deadline_ms=round(options.deadline / timedelta(milliseconds=1)),
        )
    except CronInvalid as error:
        raise AgentInvalid(f"{what}: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise AgentInvalid(f"{what}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise AgentInvalid(f"{what}: misfire {options.misfire!r} is none of {', '.join(Misfire)}") from error
    return Schedule(name, cron, policy, spec)


def tick_handler(agent_id: str, function: AnyHandler) -> AnyHandler:
    """Return the handler of a schedule's Ticks; it rejects a Tick that the agent itself has not published.

    Raises:
        AgentInvalid: the function is not `async def handler(tick: Tick, ctx: HandlerContext)`.
    """
    check_typed(function, Tick)

    @wraps(function)
    async def take(tick: Tick, ctx: Any) -> Any:
        packet = ctx.packet
        if not is_own_tick(agent_id, packet, tick):
            raise Reject(
                f"only {agent_id} itself sends its Ticks, each with its own id: this one is of "
                f"{packet.sender.agent_id}, with the id {packet.packet_id}"
            )
        return await function(tick, ctx)

    return typed_handler(take, Tick)


def is_own_tick(agent_id: str, packet: Packet, tick: Tick) -> bool:
    """Return whether an agent's schedule has published this Tick: the gate lets nobody else take the id."""
    return packet.sender.agent_id == agent_id and packet.packet_id == tick_id(agent_id, tick)
