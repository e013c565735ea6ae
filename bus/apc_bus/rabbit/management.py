"""RabbitMQ's management API, for what AMQP cannot do: users, their rights, closing their connections."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import orjson

from apc_bus.errors import BusUnavailable
from apc_bus.rabbit.definitions import Limits, Permission, password_hash
from apc_bus.tls import tls_problem


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """A node of a cluster, as the node that was asked sees it."""

    name: str
    is_running: bool
    partitions: tuple[str, ...]
    """Nodes that it was cut off from and has not joined again."""
    alarms: tuple[str, ...]
    """memory, disk: while there is one, the cluster takes no publishes."""


@dataclass(frozen=True, slots=True)
class ReplicatedQueue:
    """A quorum queue or stream, and the nodes that have it."""

    name: str
    members: tuple[str, ...]
    online: tuple[str, ...]
    leader: str | None
    """\"\" when there is none, None when the node does not say: RabbitMQ 3.10 names none for a stream."""
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """Messages that the broker keeps in its memory for one user, as its statistics of the last seconds say."""

    uncommitted: int
    """In transactions that are open."""
    unacknowledged: int


TIMEOUT_SECONDS = 5.0
"""For each answer: a node that is frozen takes the connection and says nothing."""
_PAUSES_SECONDS = (0.2, 1.0)
"""Before another try when the node fails at a call: it does when a connection that it closes ends just then."""
_ABSENT = 404
_ALARMS = {"memory": "mem_alarm", "disk": "disk_free_alarm"}


class _NodeFailed(BusUnavailable):
    """The node says that it failed (5xx)."""


class Management:
    """The API of one node, as an administrator. Every call may raise BusUnavailable; all of them may be repeated.

    Args:
        url: `http(s)://user:password@host:15672`.
        ca_file: PEM file of the authorities that are trusted for https; None = the system's.

    Raises:
        BusUnavailable: the URL or the file cannot be used.
    """

    def __init__(self, url: str, ca_file: Path | None = None) -> None:
        try:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is None:
                raise ValueError("it must be http(s)://user:password@host:15672")
            port = parts.port or 15672
            self._context = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        except (ValueError, OSError) as error:
            raise BusUnavailable(f"APC_MANAGEMENT_URL cannot be used: {error}") from error
        self.user = unquote(parts.username)
        self.host = parts.hostname
        self._url, self._ca_file = url, ca_file
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._place = f"{host}:{port}"
        self._base = f"{parts.scheme}://{self._place}{parts.path.rstrip('/')}/api"
        self._authorization = b64encode(f"{self.user}:{unquote(parts.password or '')}".encode()).decode()

    def of_host(self, host: str) -> "Management":
        """Return the API of another node, with the same scheme, port and credentials."""
        parts = urlsplit(self._url)
        credentials, _, place = parts.netloc.rpartition("@")
        port = place.rpartition(":")[2] if not place.endswith("]") and ":" in place else ""
        written = f"[{host}]" if ":" in host else host
        netloc = f"{credentials}@{written}" + (f":{port}" if port else "")
        return Management(urlunsplit(parts._replace(netloc=netloc)), self._ca_file)

    async def nodes(self) -> list[BrokerNode]:
        """Return the nodes of the cluster."""
        listed: list[dict[str, Any]] = await self._ask("GET", "nodes") or []
        return [
            BrokerNode(
                one["name"],
                bool(one.get("running")),
                tuple(one.get("partitions") or ()),
                tuple(word for word, name in _ALARMS.items() if one.get(name)),
            )
            for one in listed
        ]

    async def queues(self, vhost: str) -> list[ReplicatedQueue]:
        """Return the quorum queues and streams of a virtual host.

        A stream that was made a moment ago has no members: its node tells of them some seconds later.
        """
        listed: list[dict[str, Any]] = await self._ask("GET", f"queues/{_word(vhost)}") or []
        return [
            ReplicatedQueue(
                one["name"],
                tuple(one.get("members") or ()),
                tuple(one.get("online") or ()),
                None if one["type"] == "stream" and "leader" not in one else one.get("leader") or "",
                is_stream=one["type"] == "stream",
            )
            for one in listed
            if one.get("type") in ("quorum", "stream")
        ]

    async def bindings(self, vhost: str) -> list[tuple[str, str, str]]:
        """Return exchange, queue and key of each binding of a queue in a virtual host."""
        listed: list[dict[str, Any]] = await self._ask("GET", f"bindings/{_word(vhost)}") or []
        return [
            (one["source"], one["destination"], one["routing_key"])
            for one in listed
            if one["destination_type"] == "queue"
        ]

    async def users(self) -> dict[str, frozenset[str]]:
        """Return the tags of each user."""
        listed: list[dict[str, Any]] = await self._ask("GET", "users") or []
        return {user["name"]: _tags(user["tags"]) for user in listed}

    async def permissions(self, vhost: str) -> dict[str, Permission]:
        """Return the rights of each user in a virtual host."""
        listed: list[dict[str, Any]] = await self._ask("GET", f"vhosts/{_word(vhost)}/permissions") or []
        return {one["user"]: (one["configure"], one["write"], one["read"]) for one in listed}

    async def holdings(self, vhost: str) -> dict[str, Holding]:
        """Return what is kept for each user who has a channel in a virtual host."""
        listed: list[dict[str, Any]] = await self._ask("GET", f"vhosts/{_word(vhost)}/channels") or []
        sums: dict[str, Holding] = {}
        for one in listed:
            held = sums.get(one["user"], Holding(0, 0))
            uncommitted = held.uncommitted + one.get("messages_uncommitted", 0)
            unacknowledged = held.unacknowledged + one.get("messages_unacknowledged", 0)
            sums[one["user"]] = Holding(uncommitted, unacknowledged)
        return sums

    async def set_user(self, name: str, password: str) -> None:
        """Make a user without tags, or give it another password."""
        fields = {
            "password_hash": password_hash(password),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "",
        }
        await self._ask("PUT", f"users/{_word(name)}", fields)

    async def set_permission(self, user: str, vhost: str, permission: Permission) -> None:
        """Set the rights of a user in a virtual host, replacing others there."""
        fields = dict(zip(("configure", "write", "read"), permission, strict=True))
        await self._ask("PUT", f"permissions/{_word(vhost)}/{_word(user)}", fields)

    async def set_limits(self, user: str, limits: Limits) -> None:
        """Limit the connections and channels of a user."""
        for name, most in limits.items():
            await self._ask("PUT", f"user-limits/{_word(user)}/{name}", {"value": most})

    async def delete_user(self, name: str) -> bool:
        """Delete a user and close its connections; False when there was none.

        A right that is taken away is not seen by a busy channel (measured: for minutes), so the connections must go.
        RabbitMQ closes them when it deletes a user; here they are closed once more, whatever it did.
        """
        was_there = await self._ask("DELETE", f"users/{_word(name)}") is not None
        await self._ask("DELETE", f"connections/username/{_word(name)}")
        return was_there

    async def _ask(self, method: str, path: str, fields: Mapping[str, str | int] | None = None) -> Any:
        """Return the answer's JSON, True for an empty one, None when there is no such thing."""
        for pause in _PAUSES_SECONDS:
            try:
                return await asyncio.to_thread(self._ask_now, method, path, fields)
            except _NodeFailed:
                await asyncio.sleep(pause)
        return await asyncio.to_thread(self._ask_now, method, path, fields)

    def _ask_now(self, method: str, path: str, fields: Mapping[str, str | int] | None) -> Any:
        request = Request(f"{self._base}/{path}", orjson.dumps(fields) if fields else None, method=method)
        request.add_header("Authorization", f"Basic {self._authorization}")
        request.add_header("Content-Type", "application/json")
        try:
            with urlopen(request, timeout=TIMEOUT_SECONDS, context=self._context) as answer:
                body = answer.read()
                return orjson.loads(body) if body else True
        except HTTPError as error:
            with error:
                if error.code == _ABSENT:
                    return None
                raise self._refused(error, method, path) from error
        except (URLError, OSError, HTTPException, orjson.JSONDecodeError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, BaseException) and (problem := tls_problem(reason, "APC_AMQP")):
                raise BusUnavailable(f"the management API at {self._place} cannot be reached: {problem}") from error
            raise BusUnavailable(
                f"the management API at {self._place} does not answer ({reason}): is the plugin "
                "rabbitmq_management enabled, and APC_MANAGEMENT_URL right?"
            ) from error

    def _refused(self, error: HTTPError, method: str, path: str) -> BusUnavailable:
        if error.code == 401:
            return BusUnavailable(
                f"the management API at {self._place} refuses user {self.user!r}: check its password in "
                "APC_MANAGEMENT_URL, and that it has the tag administrator"
            )
        said = error.read(500).decode(errors="replace")
        kind = _NodeFailed if error.code >= 500 else BusUnavailable
        return kind(f"the management API at {self._place} refuses {method} {path}: {error.code} {said}")


def _word(name: str) -> str:
    return quote(name, safe="")


def _tags(tags: list[str] | str) -> frozenset[str]:
    """Return a list; before RabbitMQ 3.9 a text with commas."""
    words = tags.split(",") if isinstance(tags, str) else tags
    return frozenset(word.strip() for word in words if word.strip())
