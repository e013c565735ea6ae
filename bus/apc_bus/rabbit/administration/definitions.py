"""The topology as RabbitMQ definitions: exchanges, queues, bindings, users, least-privilege permissions."""

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from apc_bus.rabbit.administration.grants import Limits, permissions, user_limits
from apc_bus.topology import Binding, Exchange, Queue, Topology


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
