"""Turn an operator's command into a registry row: a change to every shard, and the wait until the log has it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import asyncpg

from apc_agents.keys import find_key
from apc_bus import headers
from apc_bus.port import Bus, Message, Publication
from apc_bus.settings import WorkerSettings
from apc_bus.topology import RECEIPTS, AgentQueues
from apc_client.errors import ShardsUnconfirmed
from apc_client.waiting import until
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import SPEAKS_OLDEST, Kind, Registration
from apc_contracts.identity.registry_change import AgentAdded, AnyChange, encode_registry_change
from apc_log.registry import count_recorded, registered_agents, shards_with
from apc_web.errors import ServiceAway

CONFIRM_PATIENCE = timedelta(seconds=10)
"""How long each of shard 0 and the others may take to log a schema or a contract."""
LOG_PATIENCE = timedelta(seconds=8)
"""How long to wait until gate and log writer have applied a change."""


def addition(registration: Registration) -> AgentAdded:
    """Return the change that registers an agent, or replaces its registration. Raises pydantic's ValidationError."""
    return AgentAdded(
        change_id=new_packet_id(),
        agent_id=registration.agent_id,
        broker_user=registration.broker_user,
        role=registration.role,
        swarm_id=registration.swarm_id,
        rights=tuple(sorted(registration.rights)),
        handles=tuple(sorted(registration.handles)),
        public_keys=dict(registration.public_keys),
        schemas=tuple(sorted(registration.schemas)) or None,
        kind=None if registration.kind is Kind.AGENT else registration.kind,
        via=tuple(sorted(registration.via)) or None,
        speaks=None if registration.speaks == SPEAKS_OLDEST else cast(Any, tuple(sorted(registration.speaks))),
    )


async def with_keys(pool: asyncpg.Pool, described: Sequence[Registration]) -> list[Registration]:
    """Return agents as their code describes them, with their keys, which code does not name.

    Keys in the registry stay; the key with which a worker of this environment signs is added. Raises AgentKeyUnusable.
    """
    known = {one.agent_id: one.public_keys for one in await registered_agents(pool)}
    settings = WorkerSettings()
    complete = []
    for one in described:
        key = find_key(settings, one.agent_id)
        own = {} if key is None else {key.key_id: key.public_key}
        complete.append(replace(one, public_keys={**known.get(one.agent_id, {}), **own}))
    return complete


def queues_of(registration: Registration) -> AgentQueues:
    """Return the inbox that a registered agent needs."""
    return AgentQueues(registration.agent_id, registration.swarm_id, registration.handles, registration.broker_user)


def inboxes_of(registered: Iterable[Registration]) -> list[AgentQueues]:
    """Return the inboxes that registered agents need; the client of a run has none."""
    return [queues_of(one) for one in registered if not one.is_run_client]


async def publish_changes(bus: Bus, changes: Sequence[AnyChange], shards: int) -> None:
    """Send changes to the gate of every shard, as the operator who owns this bus. Raises BusError."""
    await _publish(bus, changes, range(shards))


async def publish_in_turn(bus: Bus, pool: asyncpg.Pool, change: AnyChange, shards: int) -> None:
    """Send a change to the gate of shard 0, which decides; when its log has the change, send it to the others.

    Repeating is safe: a shard that has the change does nothing.

    Raises:
        BusError: the broker did not take it.
        ShardsUnconfirmed: some shards have not logged it in time; names them.
    """
    for group in (range(1), range(1, shards)):
        await _publish(bus, [change], group)

        async def have_it(wanted: range = group) -> bool:
            return set(wanted) <= await shards_with(pool, change.change_id)

        try:
            await until(have_it, CONFIRM_PATIENCE)
        except TimeoutError as error:
            missing = ", ".join(map(str, sorted(set(range(shards)) - await shards_with(pool, change.change_id))))
            raise ShardsUnconfirmed(
                f"{change.subject} was sent, and these shards have not confirmed it after "
                f"{CONFIRM_PATIENCE.total_seconds():g} s: {missing}. See `apc packet refused`; repeat the command"
            ) from error


async def _publish(bus: Bus, changes: Sequence[AnyChange], shards: Iterable[int]) -> None:
    publications = [
        Publication(
            RECEIPTS,
            str(shard),
            # A separate id for each shard: one id must not be in flight twice on a channel.
            Message(
                encode_registry_change(change),
                message_id=str(new_packet_id()),
                type=headers.TYPE_REGISTRY,
                user_id=bus.user,
            ),
        )
        for change in changes
        for shard in shards
    ]
    for outcome in await bus.publish_all(publications):
        if outcome is not None:
            raise outcome


async def wait_until_recorded(
    pool: asyncpg.Pool, changes: Sequence[AnyChange], shards: int, patience: timedelta
) -> None:
    """Wait until every shard has logged the changes: the registry table then holds them.

    Raises:
        ServiceAway: not within `patience`; the changes wait in the gate's queues and take effect later.
    """
    ids = [change.change_id for change in changes]

    async def is_recorded() -> bool:
        return await count_recorded(pool, ids) == len(ids) * shards

    try:
        await until(is_recorded, patience)
    except TimeoutError as error:
        raise ServiceAway(
            f"the change was sent, but is not in the log after {patience.total_seconds():g} s: do `apc serve "
            "orchestrator` and `apc serve persister` run? It takes effect as soon as they do"
        ) from error
