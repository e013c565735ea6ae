"""Who acts for an operator: a person or an agent with the right `operate` for the broker user in use."""

import re
from secrets import token_hex
from typing import Final

import asyncpg

from apc_contracts.errors import InputUnusable
from apc_contracts.identity.registry import CALLER, CLIENT, CLIENTS, SPEAKS_ALL, Kind, Registration
from apc_contracts.vocabulary import Right
from apc_log.registry import read_registry, registered_agents

OPERATOR: Final = "operator"
"""The person in whose name acts are done when nobody else is named, and their role."""
PEOPLE: Final = "people"
"""The swarm of people."""
_RANDOM_BYTES: Final = 6
_OF_A_RUN: Final = re.compile(rf"{CLIENT}-[0-9a-f]{{{2 * _RANDOM_BYTES}}}")


def new_client_id() -> str:
    """Return the agent_id of the client of a new run, such as client-5f0c2a91b3de."""
    return f"{CLIENT}-{token_hex(_RANDOM_BYTES)}"


def is_run_id(agent_id: str) -> bool:
    """Return whether an agent_id has the form of those of runs' clients."""
    return _OF_A_RUN.fullmatch(agent_id) is not None


def client_registration(user: str) -> Registration:
    """Return the registration of the client of a new run, for a broker user."""
    return Registration(
        agent_id=new_client_id(),
        broker_user=user,
        role=CLIENT,
        swarm_id=CLIENTS,
        rights=frozenset({Right.OPERATE}),
        handles=frozenset(),
        speaks=SPEAKS_ALL,
    )


async def acting_operator(pool: asyncpg.Pool, user: str, named: str | None = None) -> Registration:
    """Return the person or agent in whose name a broker user acts on sessions and dead letters.

    Without a name: the person or agent OPERATOR, else the first agent with the right (`first_operator`).

    Raises:
        InputUnusable: the named one is not registered, was revoked, has no right to operate, or does not let this
    user speak; or there is none.
    """
    registry = await read_registry(pool)
    if named is None and OPERATOR not in registry:
        return await first_operator(pool, user)
    name = named or OPERATOR
    registration, reason = registry.get(name), why_no_acts(registry.get(name), user)
    if registration is None or reason is not None:
        raise InputUnusable(f"{name} {reason}")
    return registration


def why_no_acts(registration: Registration | None, user: str) -> str | None:
    """Return why somebody may not act through a broker user, to be read after their name; None when they may."""
    if registration is None:
        return (
            f"is not registered: `apc agent add NAME --person --role operator --rights operate --via {user}`; "
            "without a broker start `apc up --person NAME:operator`"
        )
    if registration.is_revoked:
        return "was revoked and may not act any more"
    if not registration.has(Right.OPERATE):
        return "has no right to operate: repeat `apc agent add` with --rights operate"
    if not registration.speaks_as(user):
        return f"does not let the broker user {user} speak: repeat `apc agent add` with --via {user}"
    return None


def operator_person(name: str, user: str) -> Registration:
    """Return the registration of a person who operates through a broker user."""
    return person(name, OPERATOR, user)


def person(name: str, role: str, user: str) -> Registration:
    """Return the registration of a person for whom a broker user speaks; one of the role OPERATOR may operate."""
    rights = frozenset({Right.OPERATE} if role == OPERATOR else ())
    return Registration(name, user, role, PEOPLE, rights=rights, kind=Kind.PERSON, via=frozenset({user}))


async def first_operator(pool: asyncpg.Pool, user: str, agent_id: str | None = None) -> Registration:
    """Return the agent that was named, or the first operator that this broker user may speak for.

    The client of a run is no operator of others: it is revoked when the run ends. A client with a name stays, and that
    of an outside caller acts for that caller alone.

    Raises:
        InputUnusable: there is none.
    """
    agents = await registered_agents(pool)
    if agent_id is not None:
        named = next((one for one in agents if one.agent_id == agent_id), None)
        if named is None:
            raise InputUnusable(f"--as: agent {agent_id} is not registered")
        return named
    for agent in agents:
        if agent.broker_user == user and agent.has(Right.OPERATE) and not _is_for_others(agent):
            return agent
    raise InputUnusable(
        f"no agent with the right operate is registered for the broker user {user}: "
        f"`apc agent add {CLIENT}-starter --role {CLIENT} --swarm {CLIENTS} --rights operate`"
    )


def _is_for_others(agent: Registration) -> bool:
    return agent.is_run_client and (agent.role == CALLER or is_run_id(agent.agent_id))
