"""The running system, from log and queues alone: services, agents, what waits for them, and alerts that fire."""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from apc_bus.port import QueueDepth
from apc_bus.topology import gate_queue, log_queue
from apc_contracts.admission.rules.capacity import bound_of
from apc_contracts.contract.file import Limits
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.quotas import quota_of
from apc_contracts.text import numbered
from apc_log.queries.agents import ListedAgent, count_open_deliveries, list_registered
from apc_log.queries.health import RecentWork, recent_work
from apc_log.registry import read_registry
from apc_web.access import AccountRole
from apc_web.models import AgentList, AgentQuota, AgentSummary, FiringAlert, ServiceHealth, SystemHealth
from apc_web.queue_looks import MOST_INBOXES, NO_WAY, Depths
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Services, Serving


async def agent_list(services: Services) -> AgentList:
    """Return every agent that was ever registered, by name, without a look at the queues."""
    opened = await count_open_deliveries(services.pool)
    now, registry = datetime.now(UTC), await read_registry(services.pool)
    rows = await list_registered(services.pool)
    return AgentList(
        items=[
            _agent(row, registry[row.agent_id], opened, services.contract.limits, now)
            for row in rows
            if row.agent_id in registry
        ]
    )


async def agents_with_queues(services: Services) -> AgentList:
    """Return every agent as above, with the depths of its queues, as far as they are known."""
    agents, registry = await agent_list(services), await read_registry(services.pool)
    reading = {agent_id for agent_id, one in registry.items() if one.has_inbox and not one.is_revoked}
    have_inbox = [one for one in agents.items if one.agent_id in reading]
    asked = _with_few_inboxes(sorted(have_inbox, key=lambda one: not one.is_alive))
    if services.probe is None:
        return agents.model_copy(update={"is_complete": not have_inbox, "words": NO_WAY})
    depths = await services.probe.inboxes({one.agent_id: one.host for one in asked})
    if isinstance(depths, str):
        return agents.model_copy(update={"is_complete": not have_inbox, "words": depths})
    words = _gaps(len(have_inbox), len(asked), [one.agent_id for one in asked if one.agent_id not in depths])
    items = [_with_depth(one, depths) for one in agents.items]
    return AgentList(items=items, is_complete=words is None, words=words)


def _with_few_inboxes(agents: list[AgentSummary]) -> list[AgentSummary]:
    """Return the agents of the first inboxes; those of a host share one."""
    asked: set[tuple[str | None, str]] = set()
    chosen = []
    for one in agents:
        inbox = (one.host, "" if one.host is not None else one.agent_id)
        if inbox in asked or len(asked) < MOST_INBOXES:
            asked.add(inbox)
            chosen.append(one)
    return chosen


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


def _agent(
    listed: ListedAgent, registered: Registration, opened: Mapping[str, int], limits: Limits, now: datetime
) -> AgentSummary:
    quota = None if limits.quota is None else quota_of(limits.quota, listed.agent_id, listed.role)
    return AgentSummary(
        **{name: value for name, value in asdict(listed).items() if name in AgentSummary.model_fields},
        kind=registered.kind.value,
        is_alive=listed.is_alive(now),
        open_deliveries=opened.get(listed.agent_id, 0),
        most_open=bound_of(registered, limits.outstanding_deliveries),
        quota=None if quota is None else AgentQuota.of(quota),
    )


# From here on an alert fires.
LATE_SECONDS = 5.0
MOST_WAITING = 10_000
MOST_OPEN = 0.8
"""Of the open deliveries from which on the gate refuses more."""
MOST_REFUSED = 0.2
_LEAST_PACKETS = 20
"""A share of refused packets says nothing while there are fewer."""
_CLOCKS_SECONDS = 1.0
"""A log that was written so long before its verdicts shows that clocks differ."""


async def system_health(services: Services) -> SystemHealth:
    """Return how orchestrators, persisters and agents are, and what a person should look at."""
    answer = await services.probe.depths() if services.probe is not None else NO_WAY
    depths: Depths = {} if isinstance(answer, str) else answer
    recent = _with_idle(await recent_work(services.pool), depths)
    agents = [one for one in (await agent_list(services)).items if one.kind == "agent" and one.handles]
    agents = [one for one in agents if not one.is_revoked]
    parts = [part for work in recent for part in (_gate(work, depths), _persister(work, depths))]
    opened = await count_open_deliveries(services.pool)
    return SystemHealth(
        looked_at=datetime.now(UTC),
        is_complete=not isinstance(answer, str),
        words=answer if isinstance(answer, str) else _summary(parts),
        services=parts,
        agents=len(agents),
        alive=sum(one.is_alive for one in agents),
        alerts=[
            *_of_services(parts),
            *_of_work(recent),
            *_of_agents(agents, opened),
            *_of_hosts(agents),
        ],
    )


def _with_idle(recent: list[RecentWork], depths: Depths) -> list[RecentWork]:
    """Return the shards of the log, and those that have queues and no entry yet."""
    logged = {one.shard for one in recent}
    queued = itertools.takewhile(lambda shard: gate_queue(shard) in depths, itertools.count())
    idle = [RecentWork(shard, 0, 0, None, 0) for shard in queued if shard not in logged]
    return sorted([*recent, *idle], key=lambda one: one.shard)


def _summary(parts: list[ServiceHealth]) -> str:
    stopped = [one for one in parts if one.state == "stopped"]
    return "every shard has a gate and a log writer" if not stopped else "; ".join(one.words for one in stopped)


def _gate(work: RecentWork, depths: Depths) -> ServiceHealth:
    depth = depths.get(gate_queue(work.shard))
    words = _words("gate", "packets are judged", work.shard, depth)
    return _health("gate", work.shard, depth, None, words)


def _persister(work: RecentWork, depths: Depths) -> ServiceHealth:
    depth = depths.get(log_queue(work.shard))
    words = _words("log writer", "the log is written", work.shard, depth)
    if work.delay is not None and work.delay < -_CLOCKS_SECONDS:
        words += f"; the clocks of gate and database differ by at least {-work.delay:.0f} s"
    return _health("log_writer", work.shard, depth, None if work.delay is None else max(work.delay, 0.0), words)


def _health(service: str, shard: int, depth: QueueDepth | None, delay: float | None, words: str) -> ServiceHealth:
    state = "unknown" if depth is None else "running" if depth.consumers else "stopped"
    waiting = None if depth is None else depth.messages
    return ServiceHealth.model_validate(
        {"service": service, "shard": shard, "state": state, "waiting": waiting, "delay_seconds": delay, "words": words}
    )


def _words(name: str, works: str, shard: int, depth: QueueDepth | None) -> str:
    if depth is None:
        return f"nobody can say whether the {name} of shard {shard} runs"
    waits = f", {depth.messages:,} waiting" if depth.messages else ""
    return f"{works}{waits}" if depth.consumers else f"no {name} runs for shard {shard}{waits}"


def _of_services(parts: list[ServiceHealth]) -> Iterator[FiringAlert]:
    for part in parts:
        if part.state == "stopped":
            name = "ApcShardWithoutGate" if part.service == "gate" else "ApcShardWithoutLogWriter"
            yield FiringAlert(name=name, severity="critical", words=part.words)
        if part.waiting is not None and part.waiting > MOST_WAITING:
            words = f"{part.waiting:,} messages wait for the {part.service.replace('_', ' ')} of shard {part.shard}"
            yield FiringAlert(name="ApcConsumerLag", severity="warning", words=words)
        if part.delay_seconds is not None and part.delay_seconds > LATE_SECONDS:
            words = f"the log of shard {part.shard} is written {part.delay_seconds:.0f} s after the verdicts"
            yield FiringAlert(name="ApcLogWrittenLate", severity="warning", words=words)


def _of_work(recent: list[RecentWork]) -> Iterator[FiringAlert]:
    dead = sum(one.dead for one in recent)
    if dead:
        words = f"{dead:,} {'delivery' if dead == 1 else 'deliveries'} died in the last 15 minutes"
        yield FiringAlert(name="ApcDeadLetters", severity="warning", words=words)
    packets, refused = sum(one.packets for one in recent), sum(one.refused for one in recent)
    if packets >= _LEAST_PACKETS and refused > MOST_REFUSED * packets:
        words = f"{refused:,} of the last {packets:,} packets were refused (last 10 minutes)"
        yield FiringAlert(name="ApcManyRefusals", severity="warning", words=words)


def _of_agents(agents: list[AgentSummary], opened: Mapping[str, int]) -> Iterator[FiringAlert]:
    for agent in agents:
        number = opened.get(agent.agent_id, 0)
        if number > MOST_OPEN * agent.most_open:
            most = f"from {agent.most_open:,} on the gate refuses more"
            words = f"{agent.agent_id} has {number:,} deliveries open; {most}"
            yield FiringAlert(name="ApcAgentSlow", severity="warning", words=words)


def _of_hosts(agents: list[AgentSummary]) -> Iterator[FiringAlert]:
    """Yield an alert for each host that was here and is gone."""
    gone = Counter(agent.host for agent in agents if agent.is_host_present is False)
    for host, count in sorted(gone.items(), key=str):
        words = f"host {host} is gone, and with it {numbered(count, 'agent')}"
        yield FiringAlert(name="ApcHostGone", severity="critical", words=words)


# Routes of the running system: its health, its agents.

router = APIRouter(tags=["system"], route_class=RoleRoute)


@router.get("/system", response_model=SystemHealth)
@needs(AccountRole.VIEWER)
async def get_system(services: Serving) -> SystemHealth:
    """Return whether gates and log writers run, how far they are behind, and the alerts that fire."""
    return await system_health(services)


@router.get("/agents", response_model=AgentList)
@needs(AccountRole.VIEWER)
async def list_agents(
    services: Serving,
    *,
    queues: Annotated[bool, Query(description="Look at the queues of the agents, too.")] = False,
) -> AgentList:
    """Return registered agents by name, revoked ones too."""
    return await (agents_with_queues(services) if queues else agent_list(services))
