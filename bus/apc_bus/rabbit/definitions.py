"""The topology as RabbitMQ definitions: exchanges, queues, bindings, users, least-privilege permissions."""

import base64
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from apc_bus.topology import (
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    RETRY,
    SUBSTRATE,
    SUBSTRATE_STREAM,
    Topology,
    agent_queue,
    intra_exchange,
)

TOPOLOGY_USER = "topology"
ORCHESTRATOR_USER = "orchestrator"
PERSISTER_USER = "persister"
OPERATOR_USER = "operator"
_ALL = ".*"
_NOTHING = "^$"
Permission = tuple[str, str, str]
"""(configure, write, read): anchored regular expressions of resource names."""


def export_definitions(
    topology: Topology, *, vhost: str = "/", passwords: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A JSON object for `rabbitmqctl import_definitions` or `load_definitions`.

    Args:
        vhost: the virtual host that everything goes into.
        passwords: user -> password. A user without one cannot log in until it is given one
            (`rabbitmqctl change_password`); RabbitMQ 3.10 to 4.x take salted SHA-256 hashes.
    """
    grants = permissions(topology)
    given = passwords or {}
    return {
        "vhosts": [{"name": vhost}],
        "users": [_user(name, given.get(name)) for name in grants],
        "permissions": [
            {"user": user, "vhost": vhost, "configure": configure, "write": write, "read": read}
            for user, (configure, write, read) in grants.items()
        ],
        "topic_permissions": [],
        "parameters": [],
        "policies": [],
        "exchanges": [
            {
                "name": exchange.name,
                "vhost": vhost,
                "type": exchange.kind.value,
                "durable": True,
                "auto_delete": False,
                "internal": False,
                "arguments": {},
            }
            for exchange in topology.exchanges
        ],
        "queues": [
            {
                "name": queue.name,
                "vhost": vhost,
                "durable": True,
                "auto_delete": False,
                "arguments": queue.arguments,
            }
            for queue in topology.queues
        ],
        "bindings": [
            {
                "source": binding.exchange,
                "vhost": vhost,
                "destination": binding.queue,
                "destination_type": "queue",
                "routing_key": binding.key,
                "arguments": {},
            }
            for binding in topology.bindings
        ],
    }


def permissions(topology: Topology) -> dict[str, Permission]:
    """User -> its rights: the least that its job needs. Agents that share a user share their rights."""
    grants: dict[str, Permission] = {
        TOPOLOGY_USER: (_ALL, _ALL, _ALL),
        ORCHESTRATOR_USER: (
            _NOTHING,
            _one_of(re.escape(name) for name in (INTER_AGENT, SUBSTRATE, LOG, RETRY, RECEIPTS)),
            r"^apc\.(gate\.[0-9]+|dead\.letters)$",
        ),
        PERSISTER_USER: (_NOTHING, _NOTHING, r"^apc\.log\.[0-9]+$"),
        OPERATOR_USER: (_NOTHING, _one_of(map(re.escape, (INGRESS, RECEIPTS))), _NOTHING),
    }
    inboxes: dict[str, list[str]] = {}
    exchanges: dict[str, list[str]] = {}
    for agent in topology.agents:
        queues = inboxes.setdefault(agent.user, [re.escape(SUBSTRATE_STREAM)])
        queues.extend(re.escape(agent_queue(agent.agent_id, urgent)) for urgent in (True, False))
        own = exchanges.setdefault(agent.user, [re.escape(INGRESS), re.escape(RECEIPTS)])
        own.append(re.escape(intra_exchange(agent.agent_id)))
    for user, queues in inboxes.items():
        grants[user] = (_NOTHING, _one_of(exchanges[user]), _one_of(queues))
    return grants


def _one_of(expressions: Iterable[str]) -> str:
    return f"^({'|'.join(expressions)})$"


def _user(name: str, password: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "password_hash": "" if password is None else password_hash(password),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": [],
        "limits": {},
    }


def password_hash(password: str) -> str:
    """RabbitMQ's salted hash: base64(salt + SHA-256(salt + password)), a salt of 4 bytes.

    Source: RabbitMQ documentation, "Credentials and Passwords".
    """
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
