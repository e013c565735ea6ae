"""The registered agents: alive or not, what waits for them, and what the gate lets them do."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import asyncpg

from apc_bus.port import QueueDepth
from apc_contracts.contract.limit_sections import Limits
from apc_contracts.identity.registry import Kind
from apc_contracts.judging.quotas import quota_of
from apc_contracts.plurals import numbered
from apc_log.queries.agents import count_open_deliveries, list_registered
from apc_log.registry import read_registry
from apc_web.models.agents import AgentList, AgentQuota, AgentSummary
from apc_web.route_services import Services
from apc_web.running.queue_looks import MOST_INBOXES, NO_WAY

ALIVE_WITHIN = timedelta(seconds=90)
"""Three missed heartbeats (docs/specification/agents.md section 1: one after 30 s of silence)."""


async def agent_list(services: Services) -> AgentList:
    """Return every agent that was ever registered, by name, without a look at the queues."""
    opened = await count_open_deliveries(services.pool)
    now, registry = datetime.now(UTC), await read_registry(services.pool)
    rows = await list_registered(services.pool)
    return AgentList(
        items=[
            _agent(row, registry[row["agent_id"]].kind, opened, services.contract.limits, now)
            for row in rows
            if row["agent_id"] in registry
        ]
    )


async def agents_with_queues(services: Services) -> AgentList:
    """Return every agent as above, with the depths of its queues, as far as they are known."""
    found, registry = await agent_list(services), await read_registry(services.pool)
    reading = {agent_id for agent_id, one in registry.items() if one.has_inbox and not one.is_revoked}
    have_inbox = [one for one in found.items if one.agent_id in reading]
    asked = sorted(have_inbox, key=lambda one: not one.is_alive)[:MOST_INBOXES]
    if services.probe is None:
        return found.model_copy(update={"is_complete": not have_inbox, "words": NO_WAY})
    depths = await services.probe.inboxes(tuple(one.agent_id for one in asked))
    if isinstance(depths, str):
        return found.model_copy(update={"is_complete": not have_inbox, "words": depths})
    words = _gaps(len(have_inbox), len(asked), [one.agent_id for one in asked if one.agent_id not in depths])
    items = [_with_depth(one, depths) for one in found.items]
    return AgentList(items=items, is_complete=words is None, words=words)


def _gaps(agents: int, asked: int, missing: list[str]) -> str | None:
    if missing:
        others = f" and {numbered(len(missing) - 1, 'other')}" if len(missing) > 1 else ""
        return f"nobody knows the queues of {missing[0]}{others}: `apc topology apply` makes those that are missing"
    return f"the queues of {asked} of {numbered(agents, 'agent')} were looked at" if asked < agents else None


def _with_depth(agent: AgentSummary, depths: Mapping[str, QueueDepth]) -> AgentSummary:
    depth = depths.get(agent.agent_id)
    if depth is None:
        return agent
    return agent.model_copy(update={"waiting": depth.messages, "consumers": depth.consumers})


def _agent(row: asyncpg.Record, kind: Kind, opened: Mapping[str, int], limits: Limits, now: datetime) -> AgentSummary:
    last_seen, agent_id, role = row["last_seen"], row["agent_id"], row["role"]
    quota = None if limits.quota is None else quota_of(limits.quota, agent_id, role)
    return AgentSummary(
        agent_id=agent_id,
        kind=kind.value,
        role=role,
        swarm=row["swarm"],
        rights=row["rights"],
        handles=row["handles"],
        broker_user=row["broker_user"],
        is_revoked=row["is_revoked"],
        keys=row["keys"],
        last_seen=last_seen,
        is_alive=last_seen is not None and now - last_seen < ALIVE_WITHIN,
        open_deliveries=opened.get(agent_id, 0),
        most_open=limits.outstanding_deliveries,
        quota=None if quota is None else AgentQuota(packets_per_second=quota.packets_per_second, burst=quota.burst),
    )
