"""The agent that acts for an operator: registered with the right `operate` for the broker user in use."""

from secrets import token_hex
from typing import Final

import asyncpg

from apc_contracts.identity.registry import SPEAKS_ALL, Registration, Right
from apc_log.registry import registered_agents
from apc_web.errors import InputUnusable

CLIENT: Final = "client"
"""Role of the agents in whose name runs start sessions; their agent_ids begin with it."""
_SWARM: Final = "clients"
_RANDOM_BYTES: Final = 6


def new_client_id() -> str:
    """Return the agent_id of the client of a new run, such as client-5f0c2a91b3de."""
    return f"{CLIENT}-{token_hex(_RANDOM_BYTES)}"


def client_registration(user: str) -> Registration:
    """Return the registration of the client of a new run, for a broker user."""
    return Registration(
        agent_id=new_client_id(),
        broker_user=user,
        role=CLIENT,
        swarm_id=_SWARM,
        rights=frozenset({Right.OPERATE}),
        handles=frozenset(),
        speaks=SPEAKS_ALL,
    )


def is_run_client(agent: Registration) -> bool:
    """Return whether an agent is the client of a run: it ends with the run, and has no inbox."""
    return agent.swarm_id == _SWARM and agent.agent_id.startswith(f"{CLIENT}-") and not agent.handles


async def first_operator(pool: asyncpg.Pool, user: str, agent_id: str | None = None) -> Registration:
    """Return the agent that was named, or the first operator that this broker user may speak for.

    The client of a run is no operator of others: it is revoked when the run ends.

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
        if agent.broker_user == user and agent.has(Right.OPERATE) and not is_run_client(agent):
            return agent
    raise InputUnusable(
        f"no agent with the right operate is registered for the broker user {user}: "
        "`apc agent add operator --role operator --swarm operators --rights operate`"
    )
