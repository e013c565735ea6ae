"""Says that an agent lives: at start, and after a time without any emit."""

import asyncio
from datetime import timedelta

import structlog

from apc_agents.emitting.draft import Draft
from apc_agents.emitting.emitter import Emitter
from apc_agents.errors import EmitError
from apc_contracts.payloads.by_type import HeartbeatPayload
from apc_contracts.vocabulary import ORCHESTRATOR, PRESENCE_SESSION, Signal

PRESENCE_TASK = "presence"
"""run_id and task_id of a HEARTBEAT."""

_log = structlog.get_logger("apc_agents")


async def send_heartbeats(emitter: Emitter, agent_id: str, silence: timedelta) -> None:
    """Send HEARTBEAT now and whenever the agent has been silent, until cancelled."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        now = loop.time()
        if now < due:
            await asyncio.sleep(due - now)
            due = max(due, emitter.last_emit + silence.total_seconds())
        else:
            await _send(emitter, agent_id, silence)
            due = loop.time() + silence.total_seconds()


async def _send(emitter: Emitter, agent_id: str, silence: timedelta) -> None:
    draft = Draft(
        payload=HeartbeatPayload(signal=Signal.HEARTBEAT),
        to=ORCHESTRATOR,
        session_id=PRESENCE_SESSION,
        run_id=PRESENCE_TASK,
        task_id=PRESENCE_TASK,
        ttl=2 * silence,
    )
    try:
        await emitter.emit(draft, None, 0)
    except EmitError as error:
        _log.warning("heartbeat_not_sent", agent_id=agent_id, reason=str(error))
