"""Record the compressions of a chat in the log of a running system, if the session runs on a bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from apc_agents.context.conversation import CompressionAudit, OnCompression, payload_of
from apc_agents.emitting.draft import Draft
from apc_agents.emitting.emission import Builder
from apc_agents.emitting.emitter import Acknowledgements, ClaimChecks, Emitter, Sign
from apc_agents.keys import find_key
from apc_agents.llm import LLMAgent
from apc_agents.session_phase import KnownSessions
from apc_bus.port import Bus
from apc_bus.settings import BusSettings, WorkerSettings
from apc_client.sending import answer_to
from apc_console.connections.broker import open_bus
from apc_console.errors import InputUnusable
from apc_contracts.contract.contract import load_contract
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.vocabulary import Channel
from apc_log.queries import get_session


@asynccontextmanager
async def audited_compressions(
    agent: LLMAgent, session_id: str, pool: asyncpg.Pool | None
) -> AsyncIterator[OnCompression | None]:
    """Yield the callback that records each compression before it takes effect; None without a bus or such a session.

    The callback raises InputUnusable when the gate refuses, ServiceAway or BusError when it cannot be reached: the
    conversation then stays as it was.
    """
    settings = BusSettings()
    if not settings.amqp_nodes or pool is None or await get_session(pool, session_id) is None:
        yield None
        return
    async with open_bus(settings) as bus:
        yield _auditor(agent, session_id, bus, pool)


def _auditor(agent: LLMAgent, session_id: str, bus: Bus, pool: asyncpg.Pool) -> OnCompression:
    settings = WorkerSettings()
    key = find_key(settings, agent.agent_id)
    sign: Sign | None = None if key is None else key.sign
    emitter = Emitter(
        bus,
        Builder(agent.actor, KnownSessions(agent.agent_id)),
        Acknowledgements(),
        load_contract(settings.contract),
        settings,
        ClaimChecks(None, 0),  # 500 compressions fit into a packet
        sign=sign,
        deliver_locally=lambda packet: None,
    )

    async def tell(audit: CompressionAudit) -> None:
        row = await get_session(pool, session_id)
        assert row is not None, "a log forgets no session"
        for metadata in audit.metadata():
            draft = Draft(
                payload=payload_of(metadata),
                to=agent.agent_id,
                channel=Channel.INTRA_AGENT,
                session_id=session_id,
                run_id=row.document.run_id,
                task_id=row.document.task_id,
                run_phase=row.document.run_phase,
                generation=0,  # the one that every round has
                packet_id=new_packet_id(),
                metadata=metadata,
            )
            answer = await answer_to(pool, await emitter.emit(draft, None, 0), bus.user)
            if answer.reason is not None:
                raise InputUnusable(f"the log takes no record of this compression, so there is none: {answer.reason}")

    return tell
