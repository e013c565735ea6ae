"""Broker users and their rights: for every job the least that it needs.

Source: docs/specification/architecture.md section 9.
"""

import base64
import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from apc_bus.errors import TopologyInvalid
from apc_bus.topology import (
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    RETRY,
    SUBSTRATE,
    SUBSTRATE_STREAM,
    AgentQueues,
    Binding,
    Exchange,
    Queue,
    Topology,
    intra_exchange,
)

TOPOLOGY_USER = "topology"
ORCHESTRATOR_USER = "orchestrator"
PERSISTER_USER = "persister"
OPERATOR_USER = "operator"
WEB_USER = "web"
DOOR_USER = "door"
SERVICE_USERS = (TOPOLOGY_USER, ORCHESTRATOR_USER, PERSISTER_USER, OPERATOR_USER, WEB_USER, DOOR_USER)
_ALL = ".*"
_NOTHING = "^$"
Permission = tuple[str, str, str]
"""(configure, write, read): anchored regular expressions of resource names."""
Limits = dict[str, int]
"""What one user may have open at the broker."""
_OF_ONE: Limits = {"max-connections": 16, "max-channels": 128}
"""A worker has four connections and a dozen channels; what died silently counts until its heartbeats are missed."""


def permissions(topology: Topology) -> dict[str, Permission]:
    """Return the rights of each user of the services and of the topology's agents.

    Agents that share a user share their rights. An agent may have the user of the operator, of the web console or of
    the door of A2A: the rights are then added.

    Raises:
        TopologyInvalid: an agent has the user of the topology, the orchestrator or the persister.
    """
    grants: dict[str, Permission] = {
        TOPOLOGY_USER: (_ALL, _ALL, _ALL),
        ORCHESTRATOR_USER: (
            _NOTHING,
            _one_of(re.escape(name) for name in (INTER_AGENT, SUBSTRATE, LOG, RETRY, RECEIPTS)),
            r"^apc\.(gate\.[0-9]+|dead\.letters)$",
        ),
        PERSISTER_USER: (_NOTHING, _NOTHING, r"^apc\.log\.[0-9]+$"),
        **dict.fromkeys((OPERATOR_USER, WEB_USER), (_NOTHING, _one_of(map(re.escape, (INGRESS, RECEIPTS))), _NOTHING)),
        DOOR_USER: (_NOTHING, _one_of([re.escape(INGRESS)]), _NOTHING),
    }
    owned: dict[str, list[AgentQueues]] = {}
    for agent in topology.agents:
        if agent.user in (TOPOLOGY_USER, ORCHESTRATOR_USER, PERSISTER_USER):
            raise TopologyInvalid(
                f"agent {agent.agent_id!r} has the broker user {agent.user!r}, which is a service's: "
                "`apc agent add` with another --broker-user"
            )
        owned.setdefault(agent.user, []).append(agent)
    return grants | {user: agent_permission(agents) for user, agents in owned.items()}


def user_limits(topology: Topology) -> dict[str, Limits]:
    """Return the limits of each user `agent.…`, multiplied by the agents that share it; of operator, console, door too.

    Others have none: how many connections orchestrator, persister and topology open is the deployment's choice, and so
    is what shares a user with them.
    """
    owners = [agent.user for agent in topology.agents if agent.user.startswith("agent.")]
    owners += [OPERATOR_USER, WEB_USER, DOOR_USER]
    # A host has the connections of one agent, and so has its standby.
    owners += 2 * sorted({agent.user for agent in topology.agents if agent.user.startswith("host.")})
    shares = Counter(owners)
    return {user: {name: most * shares[user] for name, most in _OF_ONE.items()} for user in shares}


def agent_permission(agents: Iterable[AgentQueues]) -> Permission:
    """Return the rights of a user that these agents share: write to the gate and to each other, read what is theirs."""
    writes, reads = [INGRESS, RECEIPTS], [SUBSTRATE_STREAM]
    for agent in agents:
        if agent.host is None:
            writes.append(intra_exchange(agent.agent_id))
        reads.extend(agent.names)
    return _NOTHING, _one_of(map(re.escape, writes)), _one_of(map(re.escape, dict.fromkeys(reads)))


def _one_of(expressions: Iterable[str]) -> str:
    return f"^({'|'.join(expressions)})$"


# The topology as RabbitMQ definitions: exchanges, queues, bindings, users, least-privilege permissions.


def export_definitions(
    topology: Topology, *, vhost: str = "/", passwords: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a JSON object for `rabbitmqctl import_definitions` or `load_definitions`.

    Args:
        vhost: the virtual host that everything goes into.
        passwords: user -> password. A user without one cannot log in until it is given one
            (`rabbitmqctl change_password`); RabbitMQ 3.10 to 4.x take salted SHA-256 hashes.

    Raises:
        TopologyInvalid: an agent has the user of a service.
    """
    grants = permissions(topology)  # no topic permissions: agents write to no topic exchange, and CC passes them
    given = passwords or {}
    limits = user_limits(topology)
    return {
        "vhosts": [{"name": vhost}],
        "users": [_user(name, given.get(name), limits.get(name, {})) for name in grants],
        "permissions": [
            {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}
            for user, (configure, write, read) in grants.items()
        ],
        "topic_permissions": [],
        "parameters": [],
        "policies": [],
        "exchanges": [_exchange(exchange, vhost) for exchange in topology.exchanges],
        "queues": [_queue(queue, vhost) for queue in topology.queues],
        "bindings": [_binding(binding, vhost) for binding in topology.bindings],
    }


def _exchange(exchange: Exchange, vhost: str) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.kind.value,
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }


def _queue(queue: Queue, vhost: str) -> dict[str, Any]:
    return {"name": queue.name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": queue.arguments}


def _binding(binding: Binding, vhost: str) -> dict[str, Any]:
    return {
        "source": binding.exchange,
        "vhost": vhost,
        "destination": binding.queue,
        "destination_type": "queue",
        "routing_key": binding.key,
        "arguments": {},
    }


def _user(name: str, password: str | None, limits: Limits) -> dict[str, Any]:
    return {
        "name": name,
        "password_hash": "" if password is None else password_hash(password),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": [],
        "limits": limits,
    }


def password_hash(password: str) -> str:
    """Return RabbitMQ's salted hash: base64(salt + SHA-256(salt + password)), with a salt of 4 bytes.

    Source: RabbitMQ documentation, "Credentials and Passwords".
    """
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
