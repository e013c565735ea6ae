"""Those outside who come in through a door: each has a client that starts, and a person who is asked and answers.

Both are registered under one name, so that the tasks of a caller are theirs after every restart, at every door. The
client is `client-NAME` with the right `operate`, the person `NAME`; both have the role `caller`.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import asyncpg
from pydantic import ValidationError

from apc_bus.port import Bus
from apc_client.client import Client
from apc_client.operator import PEOPLE, is_run_id
from apc_client.registration import LOG_PATIENCE, addition, publish_changes, wait_until_recorded
from apc_contracts.errors import InputUnusable
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.identity.registry import CALLER, CLIENT, CLIENTS, SPEAKS_ALL, Kind, Registration
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked
from apc_contracts.vocabulary import Right
from apc_log.heads import LogWatch
from apc_log.registry import read_registry

KNOWN_SECONDS: Final = 3.0
"""How long the registry is taken as it was read; the gate refuses a revoked one at once."""


def client_of_caller(name: str) -> str:
    """Return the agent_id in whose name a caller's sessions are started."""
    return f"{CLIENT}-{name}"


def caller_registrations(name: str, user: str) -> tuple[Registration, Registration]:
    """Return the client and the person of a caller for whom a broker user speaks. Raises InputUnusable for the name."""
    agent_id = client_of_caller(name)
    if is_run_id(agent_id):
        raise InputUnusable(f"caller {name}: {agent_id} is the id of a run's client: choose another name")
    client = Registration(
        agent_id, user, CALLER, CLIENTS, rights=frozenset({Right.OPERATE}), speaks=SPEAKS_ALL, handles=frozenset()
    )
    return client, Registration(name, user, CALLER, PEOPLE, kind=Kind.PERSON, via=frozenset({user}))


def _additions(name: str, user: str) -> list[AgentAdded]:
    try:
        return [addition(one) for one in caller_registrations(name, user)]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputUnusable(f"caller {name[:80]!r}: {first['msg']}: choose another name") from error


async def add_caller(bus: Bus, pool: asyncpg.Pool, shards: int, name: str, user: str | None = None) -> None:
    """Register both halves of a caller and wait until the log has them; repeating it does no harm.

    Args:
        bus: connected as a user who may change the registry.
        pool: connections to the log's database, for reading.
        shards: of the deployment.
        name: of the caller.
        user: the broker user of the door through which they come; default that of the bus.

    Raises:
        InputUnusable: the name cannot be used, or an agent or a person who is no caller has it.
        ServiceAway: the change was sent, and is not in the log yet.
        BusError: the broker does not take it.
    """
    registry = await read_registry(pool)
    for agent_id in (name, client_of_caller(name)):
        known = registry.get(agent_id)
        if known is not None and known.role != CALLER and not known.is_revoked:
            raise InputUnusable(f"{agent_id} is registered as {known.role}, and no caller: choose another name")
    changes = _additions(name, user or bus.user)
    await publish_changes(bus, changes, shards)
    await wait_until_recorded(pool, changes, shards, LOG_PATIENCE)


async def revoke_caller(bus: Bus, pool: asyncpg.Pool, shards: int, name: str) -> None:
    """Revoke both halves of a caller and wait until the log has it: nothing more is accepted from them.

    Raises:
        InputUnusable: there is no such caller.
        ServiceAway, BusError: as `add_caller`.
    """
    registry = await read_registry(pool)
    halves = [one for one in (name, client_of_caller(name)) if one in registry and registry[one].role == CALLER]
    if not halves:
        raise InputUnusable(f"there is no caller {name!r}: `apc caller list` shows them")
    changes = [AgentRevoked(change_id=new_packet_id(), agent_id=one) for one in halves]
    await publish_changes(bus, changes, shards)
    await wait_until_recorded(pool, changes, shards, LOG_PATIENCE)


def callers_in(registry: Mapping[str, Registration]) -> dict[str, Registration]:
    """Return the clients of all callers that are registered and not revoked, by the callers' names."""
    return {
        name: registry[client_of_caller(name)]
        for name, person in registry.items()
        if person.kind is Kind.PERSON
        and person.role == CALLER
        and not person.is_revoked
        and client_of_caller(name) in registry
        and not registry[client_of_caller(name)].is_revoked
    }


class Callers:
    """The clients of callers, over one bus and one reader of the log.

    ```python
    import apc_client
    from apc_client import Callers


    async def tasks_of(callers: Callers, name: str) -> int:
        client: apc_client.Client = await callers.client(name)
        return (await client.sessions()).total
    ```

    Args:
        bus: connected as the broker user that speaks for the callers of this door.
        pool: connections to the log's database, for reading.
        shards: of the deployment.
    """

    def __init__(self, bus: Bus, pool: asyncpg.Pool, shards: int) -> None:
        self._bus = bus
        self._pool = pool
        self._shards = shards
        self._watch = LogWatch(pool)
        self._clients: dict[str, Client] = {}
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    @property
    def user(self) -> str:
        """The broker user that speaks for them."""
        return self._bus.user

    async def client(self, name: str) -> Client:
        """Return the client of a caller. Raises InputUnusable: nobody of that name may come through this door."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        if not self._knows(name, asked):
            async with self._reading:
                # Of many who ask at once for names that nobody has, one reads: the others were there when it began.
                if not self._knows(name, asked) and (self._read_at is None or self._read_at < asked):
                    began = loop.time()
                    self._take(await read_registry(self._pool))
                    self._read_at = began
        client = self._clients.get(name)
        if client is None:
            raise InputUnusable(
                f"{name[:80]!r} is no caller of this door: `apc caller add {name[:80]} --via {self.user}`"
            )
        return client

    def _knows(self, name: str, now: float) -> bool:
        return self._read_at is not None and now - self._read_at < KNOWN_SECONDS and name in self._clients

    def _take(self, registry: Mapping[str, Registration]) -> None:
        """Make a client for each caller of this door; the ones that are here stay."""
        known = {
            name: one
            for name, one in callers_in(registry).items()
            if one.speaks_as(self.user) and registry[name].speaks_as(self.user)
        }
        self._clients = {
            name: self._clients.get(name) or Client(self._bus, self._pool, one, self._shards, watch=self._watch)
            for name, one in known.items()
        }
