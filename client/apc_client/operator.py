"""The agent that acts for an operator: registered with the right `operate` for the broker user in use."""

import asyncpg

from apc_contracts.identity.registry import Registration, Right
from apc_log.registry import registered_agents
from apc_web.errors import InputUnusable

CLIENT = "client"
"""The agent in whose name a system that runs a team starts sessions."""


def client_registration(user: str) -> Registration:
    """Return the registration of that agent, for a broker user."""
    return Registration(
        agent_id=CLIENT,
        broker_user=user,
        role="client",
        swarm_id="clients",
        rights=frozenset({Right.OPERATE}),
        handles=frozenset(),
    )


async def first_operator(pool: asyncpg.Pool, user: str, agent_id: str | None = None) -> Registration:
    """Return the agent that was named, or the first operator that this broker user may speak for.

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
        if agent.broker_user == user and agent.has(Right.OPERATE):
            return agent
    raise InputUnusable(
        f"no agent with the right operate is registered for the broker user {user}: "
        "`apc agent add operator --role operator --swarm operators --rights operate`"
    )
