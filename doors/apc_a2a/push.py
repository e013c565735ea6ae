"""Tells receivers of tasks: at least once, from a table, so that any door goes on where another one died.

A receiver is kept with what it has confirmed: the number of artifacts, and the last status. What it has to be told next
follows from the log. States that come and go while a receiver is away are told as the last of them.
"""

import asyncio
import base64
import ipaddress
import json
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import SplitResult, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import httpx
from a2a.types.a2a_pb2 import AuthenticationInfo, TaskPushNotificationConfig
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError
from a2a.utils.proto_utils import to_stream_response
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from apc_a2a.tasks import TERMINAL, View, json_of
from apc_bus.concurrency import cancelled, unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY
from apc_bus.folders import create_private_file, make_private_folder
from apc_bus.telemetry import get_logger
from apc_contracts.errors import InputUnusable

_log = get_logger("apc_a2a")
_PUT = """
INSERT INTO apc_app.a2a_push (caller, task_id, config_id, url, sealed) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (caller, task_id, config_id)
DO UPDATE SET url = $4, sealed = $5, attempts = 0, due_at = now(), ended_at = NULL
"""
_COUNT = "SELECT count(*) FROM apc_app.a2a_push WHERE caller = $1 AND task_id = $2 AND config_id <> $3"
_LIST = """
SELECT config_id, url, sealed FROM apc_app.a2a_push
WHERE caller = $1 AND task_id = $2 AND ($3::text IS NULL OR config_id = $3) ORDER BY created_at, config_id
"""
_DELETE = "DELETE FROM apc_app.a2a_push WHERE caller = $1 AND task_id = $2 AND config_id = $3"
_LEASE = """
UPDATE apc_app.a2a_push SET leased_until = now() + $1 WHERE (caller, task_id, config_id) IN (
    SELECT caller, task_id, config_id FROM apc_app.a2a_push
    WHERE ended_at IS NULL AND due_at <= now() AND (leased_until IS NULL OR leased_until < now())
      AND caller <> ALL ($3)
    ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED
) RETURNING caller, task_id, config_id, url, sealed, told_artifacts, told_status, seen_at, attempts
"""
_TOLD = """
UPDATE apc_app.a2a_push SET told_artifacts = $4, told_status = $5, leased_until = now() + $6
WHERE caller = $1 AND task_id = $2 AND config_id = $3
"""
_LATER = """
UPDATE apc_app.a2a_push SET leased_until = NULL, due_at = now() + $4, seen_at = $5, attempts = $6
WHERE caller = $1 AND task_id = $2 AND config_id = $3
"""
_END = """
UPDATE apc_app.a2a_push SET leased_until = NULL, ended_at = now(), sealed = '' WHERE caller = $1 AND task_id = $2
  AND config_id = $3
"""
LEASE: Final = timedelta(seconds=60)
_AT_ONCE: Final = 32
_AT_ONCE_OF_ONE: Final = 8
"""Of one caller: slow receivers keep nobody else's waiting."""
PERIOD: Final = timedelta(seconds=0.5)
"""Between two looks at a task that goes on."""
LONGEST_PAUSE: Final = timedelta(minutes=5)
MOST_ATTEMPTS: Final = 100
"""Some eight hours."""
MOST_RECEIVERS: Final = 10
"""Of one task."""
_LONGEST_URL: Final = 2_048
_SEND_SECONDS: Final = 10.0
MEDIA_TYPE: Final = "application/a2a+json"
_NONCE = 12


class PushAway(Exception):
    """A receiver has not confirmed; says why, without its credentials."""


class Tasks(Protocol):
    """Where tasks are read."""

    async def view(self, caller_name: str, task_id: str) -> View:
        """Return a task of a caller. Raises TaskNotFoundError, InputUnusable."""

    async def changed_at(self, caller_name: str, task_id: str) -> datetime | None:
        """Return when a task changed last. Raises as `view`."""


# Where a receiver may be: a public address, reached by https, or a host that the operator has named.

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host."""


_RESOLVERS = ThreadPoolExecutor(8, "push-names")
"""Not those of the loop: a name server that does not answer would hold what else runs there."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host. Raises OSError."""
    ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, ask)
    return [str(one[4][0]) for one in found]


@dataclass(frozen=True, slots=True)
class Destination:
    """A checked URL, and the address to connect to: the name is not asked again."""

    url: SplitResult
    address: str

    @property
    def pinned(self) -> str:
        """The URL with the address in place of the name."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        port = "" if self.url.port is None else f":{self.url.port}"
        return urlunsplit(self.url._replace(netloc=f"{host}{port}"))


class PushHosts:
    """Which URLs may be told.

    Args:
        allowed: hosts, with or without a port, whose addresses may be private and which may speak http.
        resolve: returns the addresses of a host.
    """

    def __init__(self, allowed: Iterable[str] = (), resolve: Resolve = resolve) -> None:
        self._allowed = frozenset(one.lower() for one in allowed)
        self._resolve = resolve

    async def accept(self, url: str) -> None:
        """Raise InputUnusable for a URL that may not be told; a name that the operator allows may be unknown as yet."""
        if not self._read(url)[2]:
            await self.check(url)

    async def check(self, url: str) -> Destination:
        """Return where to send. Raises InputUnusable, which says why the URL may not be told."""
        parts, port, is_allowed = self._read(url)
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                addresses = await self._resolve(parts.hostname or "", port)
        except (OSError, ValueError) as error:
            raise InputUnusable("the host of the push URL is not known") from error
        if not addresses or not (is_allowed or all(map(is_public, addresses))):
            raise InputUnusable("the host of the push URL has no public address")
        return Destination(parts, addresses[0])

    def _read(self, url: str) -> tuple[SplitResult, int, bool]:
        """Return the parts of a URL, its port, and whether the operator allows its host. Raises InputUnusable."""
        if len(url) > _LONGEST_URL:
            raise InputUnusable(f"a push URL has at most {_LONGEST_URL} characters")
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError as error:
            raise InputUnusable("the push URL cannot be read: write https://HOST/PATH") from error
        if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc:
            raise InputUnusable("a push URL is https://HOST/PATH, without a user")
        number = port or (443 if parts.scheme == "https" else 80)
        is_allowed = host in self._allowed or f"{host}:{number}" in self._allowed
        if parts.scheme == "http" and not is_allowed:
            raise InputUnusable("a push URL must be https")
        return parts, number, is_allowed


def is_public(address: str) -> bool:
    """Return whether an address is one of the public internet; one of IPv4 in IPv6 is judged as the former.

    Clouds answer with credentials at some addresses that no registry calls private.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if found.is_site_local or (inner is not None and not is_public(str(inner))):
            return False
    elif any(found in one for one in _OF_CLOUDS):
        return False
    return found.is_global and not (found.is_multicast or found.is_reserved or found.is_unspecified)


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_OF_CLOUDS = (ipaddress.IPv4Network("168.63.129.16/32"), ipaddress.IPv4Network("192.0.0.0/24"))
"""Azure's host, and RFC 6890's block of protocols, in which Oracle's metadata are."""

# Credentials of receivers are kept encrypted, bound to their task.


def read_push_key(file: Path) -> bytes:
    """Return the key of a file, which is made unless it is there. Raises InputUnusable."""
    try:
        if not file.exists():
            make_private_folder(file.parent)
            with suppress(FileExistsError):  # another door was faster
                create_private_file(file, base64.b64encode(os.urandom(32)) + b"\n")
        key = base64.b64decode(file.read_bytes().strip(), validate=True)
    except (OSError, ValueError) as error:
        raise InputUnusable(f"{file}: the key for push cannot be read: {error}") from error
    if len(key) != 32:
        raise InputUnusable(f"{file}: the key for push is 32 bytes in Base64, this one has {len(key)}")
    return key


class Push:
    """The receivers of tasks, and what tells them.

    Args:
        pool: of a user with the role `apc_door`.
        key: encrypts credentials; 32 bytes, the same at every door.
        hosts: which URLs may be told.
    """

    def __init__(self, pool: asyncpg.Pool, key: bytes, hosts: PushHosts) -> None:
        self._pool = pool
        self._cipher = AESGCM(key)
        self._hosts = hosts
        self._woken = asyncio.Event()

    async def check(self, config: TaskPushNotificationConfig) -> None:
        """Raise InvalidParamsError for a receiver that may not be told."""
        if len(config.id) > 128 or "\x00" in config.id:
            raise InvalidParamsError("the id of a push configuration has at most 128 characters")
        try:
            await self._hosts.accept(config.url)
        except InputUnusable as error:
            raise InvalidParamsError(str(error)) from error

    async def put(self, caller: str, task_id: str, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Keep a checked receiver; return it with its id. Raises InvalidParamsError when the task has too many."""
        kept = TaskPushNotificationConfig()
        kept.CopyFrom(config)
        kept.task_id, kept.id = task_id, config.id or str(uuid4())
        if await self._pool.fetchval(_COUNT, caller, task_id, kept.id) >= MOST_RECEIVERS:
            raise InvalidParamsError(f"a task has at most {MOST_RECEIVERS} push configurations: delete one")
        await self._pool.execute(_PUT, caller, task_id, kept.id, kept.url, self._seal(caller, kept))
        self._woken.set()
        return kept

    async def list(self, caller: str, task_id: str, config_id: str | None = None) -> "list[TaskPushNotificationConfig]":
        """Return the receivers of a task."""
        rows = await self._pool.fetch(_LIST, caller, task_id, config_id)
        return [self._config(caller, task_id, row) for row in rows]

    async def delete(self, caller: str, task_id: str, config_id: str) -> None:
        """Forget a receiver; nothing when there is none."""
        await self._pool.execute(_DELETE, caller, task_id, config_id)

    def _seal(self, caller: str, config: TaskPushNotificationConfig) -> bytes:
        secret = {"token": config.token, "authentication": json_of(config.authentication)}
        nonce, bound = os.urandom(_NONCE), _bound(caller, config.task_id, config.id)
        return nonce + self._cipher.encrypt(nonce, json.dumps(secret).encode(), bound)

    def _config(self, caller: str, task_id: str, row: asyncpg.Record) -> TaskPushNotificationConfig:
        config = TaskPushNotificationConfig(task_id=task_id, id=row["config_id"], url=row["url"])
        sealed = bytes(row["sealed"])
        if sealed:
            bound = _bound(caller, task_id, config.id)
            secret = json.loads(self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], bound))
            config.token = secret["token"]
            if secret["authentication"]:
                config.authentication.CopyFrom(AuthenticationInfo(**secret["authentication"]))
        return config

    # Tell.

    async def run(self, tasks: Tasks) -> None:
        """Tell receivers until cancelled; while the database is away it waits."""
        telling: dict[asyncio.Task[None], str] = {}
        async with httpx.AsyncClient(follow_redirects=False, timeout=_SEND_SECONDS, trust_env=False) as http:
            try:
                while True:
                    self._woken.clear()
                    for row in await self._due(telling.values()):
                        telling[asyncio.create_task(self._serve(tasks, http, row))] = row["caller"]
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), PERIOD.total_seconds())
                    for ended in [one for one in telling if one.done()]:
                        del telling[ended]
                        if (error := ended.exception()) is not None:  # its lease ends, and then it is told
                            _log.error("push_failed", reason=f"{type(error).__name__}: {error}")
            finally:
                await cancelled(*telling)

    async def _due(self, telling: Iterable[str]) -> Sequence[asyncpg.Record]:
        """Return receivers that are due and now leased by this door; none while the database is away."""
        counted = Counter(telling)
        busy = [caller for caller, count in counted.items() if count >= _AT_ONCE_OF_ONE]
        try:
            with unasked_cancel_fails():
                rows = await self._pool.fetch(_LEASE, LEASE, max(0, _AT_ONCE - counted.total()), busy)
        except DATABASE_AWAY as error:
            _log.warning("push_waits", reason=f"{type(error).__name__}: {error}")
            return []
        return list(rows)

    async def _serve(self, tasks: Tasks, http: httpx.AsyncClient, row: asyncpg.Record) -> None:
        """Tell one receiver what is new, and say when to look again."""
        named = row["caller"], row["task_id"], row["config_id"]
        attempts, seen = row["attempts"], row["seen_at"]
        try:
            changed = await tasks.changed_at(*named[:2])
            if changed is not None and changed != seen:
                view = await tasks.view(*named[:2])
                await self._tell(http, row, view)
                seen, attempts = changed, 0
                if view.state in TERMINAL:
                    await self._pool.execute(_END, *named)
                    return
            await self._pool.execute(_LATER, *named, PERIOD, seen, attempts)
        except TaskNotFoundError:
            await self._pool.execute(_LATER, *named, PERIOD, seen, attempts)
        except (PushAway, InputUnusable, InvalidTag) as error:
            _log.warning("push_unconfirmed", task_id=named[1], attempts=attempts + 1, reason=str(error))
            if attempts + 1 >= MOST_ATTEMPTS:
                await self._pool.execute(_END, *named)
                return
            pause = min(timedelta(seconds=2 ** min(attempts, 10)), LONGEST_PAUSE)
            await self._pool.execute(_LATER, *named, pause, seen, attempts + 1)

    async def _tell(self, http: httpx.AsyncClient, row: asyncpg.Record, view: View) -> None:
        """Send what the receiver has not confirmed, in order; each is noted as soon as it is confirmed."""
        named = row["caller"], row["task_id"], row["config_id"]
        config = self._config(row["caller"], row["task_id"], row)
        told, status = row["told_artifacts"], row["told_status"]
        for event in view.artifacts[told:]:
            await self._send(http, config, json_of(to_stream_response(event)))
            told += 1
            await self._pool.execute(_TOLD, *named, told, status, LEASE)
        if view.status_key != status:
            await self._send(http, config, json_of(to_stream_response(view.status_event)))
            await self._pool.execute(_TOLD, *named, told, view.status_key, LEASE)

    async def _send(self, http: httpx.AsyncClient, config: TaskPushNotificationConfig, body: object) -> None:
        """Send one event. Raises PushAway unless the receiver confirms; InputUnusable: it may not be told any more."""
        where = await self._hosts.check(config.url)
        headers = {"Content-Type": MEDIA_TYPE, "Host": where.url.netloc}
        if config.token:
            headers["X-A2A-Notification-Token"] = config.token
        if config.authentication.scheme:
            headers["Authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
        try:
            async with asyncio.timeout(_SEND_SECONDS):  # that of the client is of each read: one may drip for hours
                answer = await self._answer(http, where, headers, json.dumps(body))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            raise PushAway(type(error).__name__) from error
        if not answer.is_success:
            raise PushAway(f"the receiver answered {answer.status_code}")

    @staticmethod
    async def _answer(
        http: httpx.AsyncClient, where: Destination, headers: Mapping[str, str], body: str
    ) -> httpx.Response:
        """Return the head of an answer: its body is not read, it may have any size."""
        request = http.build_request(
            "POST",
            where.pinned,
            content=body,
            headers=headers,
            extensions={"sni_hostname": where.url.hostname or ""},
        )
        answer = await http.send(request, stream=True)
        await answer.aclose()
        return answer


def _bound(caller: str, task_id: str, config_id: str) -> bytes:
    return json.dumps([caller, task_id, config_id]).encode()
