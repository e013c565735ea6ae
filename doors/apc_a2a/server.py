"""The card, its signature, the routes, and the server of a door."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    HTTPAuthSecurityScheme,
    MutualTlsSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from a2a.utils.signing import create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from apc_a2a.access import (
    JSON_RPC,
    CallContexts,
    CallersFile,
    Gatekeeper,
    Issuer,
    ReadRequest,
    read_callers,
    refuse,
    refused,
)
from apc_a2a.handler import Door, Limits
from apc_a2a.push import Push, PushHosts, read_push_key
from apc_a2a.tasks import REPEATS, TYPED
from apc_agents.team import Team
from apc_agents.typed import document_of
from apc_bus.artifacts import ArtifactStore
from apc_bus.concurrency import cancelled
from apc_bus.settings import A2ASettings
from apc_client import Callers
from apc_contracts.errors import InputUnusable
from apc_web.guard import BehindProxies
from apc_web.http import HttpLimits, StoppableServer, TlsFiles, listen_address, make_server, open_listeners
from apc_web.local_names import is_loopback

REST = "/a2a/rest"
KEYS = "/.well-known/jwks.json"
_MODES = ("text/plain", "application/json")
_CONNECTIONS = 512
_OF_ONE_ADDRESS: int | None = 256
"""One stranger leaves room for others; behind a proxy all have its address."""


def card_of(team: Team, url: str, *, pushes: bool, certificates: bool = False) -> AgentCard:
    """Return the card of a team behind a door.

    Args:
        team: its entry is the skill, and the schema of its input stands in an extension.
        url: under which clients reach the door.
        pushes: whether it tells receivers.
        certificates: whether callers may show a certificate instead of a token.
    """
    schema = {} if team.input is None else {"input": document_of(team.input)}
    schemes = {"bearer": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))}
    if certificates:
        schemes["certificate"] = SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())
    return AgentCard(
        name=team.name,
        description=f"The team {team.name} of apc-bus",
        version="1",
        provider=AgentProvider(organization="apc-bus", url=url),
        supported_interfaces=[
            AgentInterface(url=f"{url}{path}", protocol_binding=binding, protocol_version="1.0")
            for binding, path in (("JSONRPC", JSON_RPC), ("HTTP+JSON", REST))
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=pushes,
            extended_agent_card=False,
            extensions=[
                AgentExtension(
                    uri=TYPED,
                    description="The schema of the input; results as typed data",
                    params=ParseDict(schema, Struct()),
                ),
                AgentExtension(uri=REPEATS, description="A message that is sent again is the same task"),
            ],
        ),
        security_schemes=schemes,
        security_requirements=[SecurityRequirement(schemes={name: StringList()}) for name in schemes],
        default_input_modes=_MODES,
        default_output_modes=_MODES,
        skills=[AgentSkill(id=team.entry, name=team.name, description=f"Takes a task of {team.name}", tags=["apc"])],
    )


@dataclass(frozen=True, slots=True)
class CardKey:
    """The key that signs a card."""

    private: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey

    @property
    def algorithm(self) -> str:
        """As JSON Web Signatures name it."""
        return "EdDSA" if isinstance(self.private, ed25519.Ed25519PrivateKey) else "ES256"

    @property
    def public_jwk(self) -> dict[str, str]:
        """The public half as a JSON Web Key; its `kid` is the thumbprint of RFC 7638."""
        if isinstance(self.private, ed25519.Ed25519PrivateKey):
            raw = self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
            needed = {"crv": "Ed25519", "kty": "OKP", "x": _base64url(raw)}
        else:
            point = self.private.public_key().public_numbers()
            x, y = (_base64url(number.to_bytes(32, "big")) for number in (point.x, point.y))
            needed = {"crv": "P-256", "kty": "EC", "x": x, "y": y}
        thumbprint = sha256(json.dumps(needed, sort_keys=True, separators=(",", ":")).encode()).digest()
        return {**needed, "kid": _base64url(thumbprint), "alg": self.algorithm, "use": "sig"}

    def sign(self, card: AgentCard, url: str) -> AgentCard:
        """Return the card with its signature, which names where the public key is."""
        header: Any = {
            "kid": self.public_jwk["kid"], "alg": self.algorithm, "jku": f"{url}{KEYS}", "typ": "JOSE"
        }  # fmt: skip
        signed: AgentCard = create_agent_card_signer(self.private, header)(card)  # type: ignore[arg-type]
        return signed


def read_card_key(file: Path) -> CardKey:
    """Return the key of a PEM file. Raises InputUnusable."""
    try:
        key = load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InputUnusable(f"{file}: the key of the card cannot be read: {error}") from error
    is_p256 = isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    if not isinstance(key, ed25519.Ed25519PrivateKey) and not is_p256:
        raise InputUnusable(f"{file}: the key of the card must be one of Ed25519 or P-256")
    return CardKey(key)  # type: ignore[arg-type]


def _base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def make_app(door: Door, card: AgentCard, key: CardKey | None) -> Starlette:
    """Return the routes of a door; who may ask is the gatekeeper's."""
    keys = [] if key is None else [key.public_jwk]
    changed = formatdate(usegmt=True)

    async def show_keys(request: Request) -> Response:
        return JSONResponse({"keys": keys}, headers={"Cache-Control": "public, max-age=60"})

    async def live(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    (public,) = create_agent_card_routes(card, cache_control="public, max-age=60")
    show_card = public.endpoint

    async def dated(request: Request) -> Response:
        answer: Response = await show_card(request)
        answer.headers["Last-Modified"] = changed
        return answer

    contexts = CallContexts()
    rpc, *_ = create_jsonrpc_routes(door, JSON_RPC, contexts, enable_v0_3_compat=True)
    take = rpc.endpoint

    async def call(request: Request) -> Response:
        answer: Response = await take(ReadRequest(request.scope, request.receive))
        return answer

    rest = create_rest_routes(door, contexts, path_prefix=REST)
    return Starlette(
        routes=[
            Route(public.path, dated, methods=["GET"]),
            Route(KEYS, show_keys, methods=["GET"]),
            Route("/healthz", live, methods=["GET"]),
            Route(JSON_RPC, call, methods=["POST"]),
            # The conformance kit posts to the URL of the interface with a slash behind it.
            Route(f"{JSON_RPC}/", call, methods=["POST"]),
            *(route for route in rest if isinstance(route, Route)),  # no tenants
        ],
        exception_handlers={HTTPException: _say, Exception: _say},
    )


async def _say(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        answer = refused(request.scope, error.status_code, error.detail)
        answer.headers.update(error.headers or {})
        return answer
    return refused(request.scope, 500, "Internal error")


def callers_file_of(settings: A2ASettings, folder: Path) -> Path:
    """Return the file of the callers' tokens."""
    return settings.a2a_callers_file or folder / "a2a-callers.json"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a door listens, and the keys and files that its settings name, read and checked.

    `placed` makes one before anything is started that a fault in the settings would leave half done.
    """

    settings: A2ASettings
    host: str
    listeners: Sequence[socket]
    url: str
    """Under which clients reach it."""
    callers_file: Path
    tls: TlsFiles | None
    issuer: Issuer | None
    card_key: CardKey | None
    push_key: bytes

    @property
    def port(self) -> int:
        """The port of all listeners."""
        return int(self.listeners[0].getsockname()[1])

    @property
    def knows_nobody(self) -> bool:
        """Whether there are neither tokens nor an issuer nor an authority as yet."""
        nobody = self.issuer is None and self.settings.a2a_client_ca_file is None
        return nobody and not read_callers(self.callers_file).callers


@contextmanager
def placed(settings: A2ASettings, folder: Path, listen: str | None = None) -> Iterator[Place]:
    """Yield the place of a door, which listens while the context is open.

    Args:
        settings: of the door.
        folder: of its data.
        listen: HOST:PORT; default that of the settings. Port 0 takes a free one.

    Raises:
        InputUnusable: the address is taken, or a file or a setting cannot be used.
    """
    listen = listen or settings.a2a_listen
    host, port = listen_address(listen, "APC_A2A_LISTEN")
    tls = _tls(settings)
    _check_reach(settings, host, tls)
    callers, key_file = callers_file_of(settings, folder), settings.a2a_card_key_file
    with _named("APC_A2A_CALLERS_FILE"):
        read_callers(callers)
    issuer = _issuer(settings)
    with _named("APC_A2A_CARD_KEY_FILE"):
        card_key = None if key_file is None else read_card_key(key_file)
    with _named("APC_A2A_PUSH_KEY_FILE"):
        push_key = read_push_key(settings.a2a_push_key_file or folder / "a2a-push.key")
    with open_listeners(host, port, name="APC_A2A_LISTEN") as listeners:
        shown = f"[{host}]" if ":" in host else host
        own = f"{'http' if tls is None else 'https'}://{shown}:{listeners[0].getsockname()[1]}"
        url = (settings.a2a_url or own).rstrip("/")
        yield Place(settings, host, listeners, url, callers, tls, issuer, card_key, push_key)


def _check_reach(settings: A2ASettings, host: str, tls: TlsFiles | None) -> None:
    if not is_loopback(host):
        if tls is None and not settings.a2a_trusted_proxies:
            raise InputUnusable(
                f"APC_A2A_LISTEN: others reach {host}, and tokens need TLS: set APC_A2A_TLS_CERT and APC_A2A_TLS_KEY, "
                "or APC_A2A_TRUSTED_PROXIES when a proxy ends TLS in front of this door"
            )
        if not settings.a2a_hosts:
            raise InputUnusable(f"APC_A2A_LISTEN: others reach {host}: set APC_A2A_HOSTS to the names by which they do")
    url = settings.a2a_url
    if url is not None and (urlsplit(url).scheme not in {"http", "https"} or not urlsplit(url).hostname):
        raise InputUnusable(f"APC_A2A_URL: {url!r} is no http:// or https:// URL")


@contextmanager
def _named(setting: str) -> Iterator[None]:
    """Name the setting in front of what is wrong with it."""
    try:
        yield
    except InputUnusable as error:
        raise InputUnusable(f"{setting}: {error}") from error


def _tls(settings: A2ASettings) -> TlsFiles | None:
    certificate, key, clients = settings.a2a_tls_cert, settings.a2a_tls_key, settings.a2a_client_ca_file
    if (certificate is None) != (key is None):
        raise InputUnusable("set both APC_A2A_TLS_CERT and APC_A2A_TLS_KEY, or neither")
    if certificate is None or key is None:
        if clients is not None:
            raise InputUnusable("APC_A2A_CLIENT_CA_FILE needs APC_A2A_TLS_CERT and APC_A2A_TLS_KEY")
        return None
    files = TlsFiles(certificate, key, clients)
    files.check("APC_A2A")
    return files


def _issuer(settings: A2ASettings) -> Issuer | None:
    """Return whose tokens are taken beside those of the file."""
    named = settings.a2a_jwt_issuer, settings.a2a_jwt_audience, settings.a2a_jwks_file
    issuer, audience, keys = named
    if issuer is None or audience is None or keys is None:
        if any(one is not None for one in named):
            raise InputUnusable("set APC_A2A_JWT_ISSUER, APC_A2A_JWT_AUDIENCE and APC_A2A_JWKS_FILE, or none")
        return None
    with _named("APC_A2A_JWKS_FILE"):
        return Issuer(issuer, audience, keys)


@dataclass(frozen=True, slots=True)
class Served:
    """What a door is made of.

    Args:
        team: what answers.
        callers: over the bus as whose user the door speaks.
        pool: for the receivers of push: of a user with the role `apc_door`.
        artifacts: keeps the bytes of messages.
    """

    team: Team
    callers: Callers
    pool: asyncpg.Pool
    artifacts: ArtifactStore


@asynccontextmanager
async def opened_door(served: Served, place: Place) -> AsyncIterator[ASGIApp]:
    """Yield the application of a door, which tells receivers while the context lasts."""
    settings, key = place.settings, place.card_key
    push = Push(served.pool, place.push_key, PushHosts(settings.a2a_push_hosts))
    card = card_of(served.team, place.url, pushes=True, certificates=settings.a2a_client_ca_file is not None)
    limits = Limits(settings.a2a_most_tasks, settings.a2a_most_streams, settings.a2a_wait_seconds)
    door = Door(served.callers, served.team, card, artifacts=served.artifacts, push=push, limits=limits)
    app = make_app(door, card if key is None else key.sign(card, place.url), key)
    file = CallersFile(place.callers_file)
    guarded = Gatekeeper(app, served.callers, file, place.issuer, settings.a2a_most_bytes)
    telling = asyncio.create_task(push.run(door))
    try:
        yield guarded
    finally:
        await cancelled(telling)


@dataclass(slots=True)
class OpenDoor:
    """A door that listens."""

    url: str
    listeners: Sequence[socket]
    server: StoppableServer

    async def serve(self, stop: asyncio.Event) -> None:
        """Answer until `stop` is set; streams are cut then. Raises TaskEnded."""

        async def end() -> None:
            await stop.wait()
            self.server.should_exit = True

        ending = asyncio.create_task(end())
        try:
            await self.server.serve(self.listeners)
        finally:
            await cancelled(ending)


@asynccontextmanager
async def listening(served: Served, place: Place) -> AsyncIterator[OpenDoor]:
    """Yield a door that answers at its place as soon as it is told to serve."""
    proxies = place.settings.a2a_trusted_proxies
    async with opened_door(served, place) as app:
        server = make_server(
            BehindProxies(app, proxies, refuse) if proxies else app,
            place.host,
            place.port,
            limits=HttpLimits(_CONNECTIONS, None if proxies else _OF_ONE_ADDRESS),
            graceful_seconds=5,
            hosts=place.settings.a2a_hosts,
            media_type=None,
            tls=place.tls,
            takes_signals=False,
            refuses=refuse,
        )
        yield OpenDoor(place.url, place.listeners, server)
