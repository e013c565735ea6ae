"""The web console: its acts, its queues, its chat, who may reach it, and its server (`apc ui`, `apc serve web`)."""

import asyncio
import html
import sys
import webbrowser
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote
from uuid import UUID

import asyncpg
from pydantic import JsonValue
from starlette.types import ASGIApp

from apc_agents import EffectSettled
from apc_agents.effects import EffectId, EffectRecord, PostgresEffectStore
from apc_agents.errors import ValueUnserialisable
from apc_agents.json_values import result_value
from apc_bus.concurrency import cancelled, unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY, first_line
from apc_bus.port import QueueDepth
from apc_bus.settings import (
    BusSettings,
    ConsoleSettings,
    DatabaseSettings,
    LLMSettings,
    LogKeySettings,
    OrchestratorSettings,
    WebSettings,
)
from apc_bus.topology import gate_queue, log_queue
from apc_cli.commands.dead_letter import settle_deliveries
from apc_cli.commands.effect import report_settled, settle_kept
from apc_cli.commands.issue import acknowledge_as
from apc_cli.commands.session_control import signal_over
from apc_cli.connections import PATIENCE, database_url, find_door, open_bus
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.health import serve_health
from apc_cli.output.terminal import echo
from apc_cli.system.running import end_with_supervisor
from apc_client.local_acts import inbox_depths, open_acts
from apc_client.operator import acting_operator
from apc_client.sending import AnswerForm, answer_over, until
from apc_contracts.contract.contract import load_contract
from apc_contracts.payloads.by_type import AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import EffectEntry, ReceiptKind
from apc_log.heads import holds_log
from apc_log.offline_verifier import PublicKey
from apc_log.queries import DeliveryId, effects_of
from apc_log.queries.session_pages import figures_of_runs
from apc_log.queries.troubles import IssueKey
from apc_log.registry import registered_people
from apc_persister.errors import LogKeyMissing
from apc_persister.evidence.checkpoint import load_signer
from apc_web.access import LOCAL_USER, Accounts, UsersFile, read_users, write_private
from apc_web.app import make_app
from apc_web.guard import AccessGuard, BehindProxies
from apc_web.http import HttpLimits, TlsFiles, listen_address, make_server, open_listeners
from apc_web.live import Feed
from apc_web.local_names import is_loopback
from apc_web.local_token import KeptToken, LocalToken, renew_token
from apc_web.pool import open_reader, open_settler, open_state_reader
from apc_web.queue_looks import CachedProbe
from apc_web.route_services import ActResult, KeyOf, Services
from apc_web.verification_job import LogVerifier

if TYPE_CHECKING:
    from apc_web.chats import Chats

# The agent of the web console's chat, and where its conversations are kept.


class ChatOptions(Protocol):
    """The options that matter for the chat."""

    @property
    def is_read_only(self) -> bool:
        """Whether there are no acts."""

    @property
    def agent(self) -> str | None:
        """The agent as module:agent."""


async def chats_of(stack: AsyncExitStack, form: ChatOptions) -> "Chats | str":
    """Return the conversations while `stack` is open, or one sentence that says why there are none.

    Raises ApcError: the agent that was named cannot be used.
    """
    if form.is_read_only:
        return "this server was started with --read-only"
    if form.agent is None and LLMSettings().model is None:
        return "this server has no agent to talk to: set APC_LLM_MODEL, or start it with --agent MODULE:AGENT"
    from apc_cli.chat import chat_agent, open_memory, running_tasks
    from apc_web.chats import Chats

    agent = chat_agent(form.agent)
    memory = await stack.enter_async_context(open_memory(LOCAL_USER))
    tasks = await stack.enter_async_context(running_tasks(agent, memory))
    chats = Chats(agent, memory.of, tasks, is_kept=memory.pool is not None)
    stack.push_async_callback(chats.close)
    return chats


# The health pages of `apc serve web`: ready as long as the database answers.

PAUSE_SECONDS = 3.0
"""Between two questions to the database."""


@asynccontextmanager
async def health_pages(pool: asyncpg.Pool, *, is_wanted: bool) -> AsyncIterator[None]:
    """Serve the pages while the context lasts; not at all without APC_HEALTH_PORT.

    Raises:
        InputUnusable: the address is taken, or we may not use it.
    """
    settings = ConsoleSettings()
    if not is_wanted or settings.health_port is None:
        yield
        return
    problems: list[str] = []
    asking = asyncio.create_task(_ask(pool, problems))
    try:
        with serve_health(settings.health_host, settings.health_port, lambda: tuple(problems)):
            yield
    finally:
        await cancelled(asking)


async def _ask(pool: asyncpg.Pool, problems: list[str]) -> None:
    """Keep what is wrong with the database in `problems`."""
    while True:
        try:
            with unasked_cancel_fails():
                await pool.fetchval("SELECT 1")
        except DATABASE_AWAY as error:
            problems[:] = [f"the database is away: {first_line(error)}"]
        else:
            problems.clear()
        await asyncio.sleep(PAUSE_SECONDS)


# The acts of the web console: the same functions as the command line, over the server's pool.


class OperatorActs:
    """Acts of people for whom this server's broker user speaks.

    Args:
        pool: reads the log.
        settings: the system; each act opens its own connection.
        operator: in whose name somebody acts who has no account; None = the person `operator`, or the first agent of
            the broker user with the right.
        settler: settles effects and acknowledges issues in the database; None = its user may not.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        settings: BusSettings,
        operator: str | None = None,
        settler: asyncpg.Pool | None = None,
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._operator = operator
        self._settler = settler

    async def why_not(self, by: str | None) -> str | None:
        """Return why somebody has no acts now: nobody listens, or they are not registered for them."""
        try:
            door = find_door(self._settings)
            await door.check()
            await acting_operator(self._pool, door.user, by or self._operator)
        except (InputUnusable, ServiceAway) as error:
            return str(error)
        return None

    async def voices(self, by: str | None) -> frozenset[str]:
        """Return the people in whose names somebody may answer; nobody while nobody listens."""
        try:
            user = find_door(self._settings).user
        except InputUnusable:
            return frozenset()
        able = {one.agent_id for one in await registered_people(self._pool) if one.speaks_as(user)}
        return frozenset(able if by is None else able & {by})

    async def settle(
        self,
        kind: ReceiptKind,
        deliveries: Sequence[DeliveryId],
        note: str | None,
        by: str | None,
        attempts: Mapping[DeliveryId, int] | None = None,
    ) -> ActResult:
        """Requeue or discard dead deliveries. Raises InputUnusable, ServiceAway, BusError."""
        door = find_door(self._settings)
        who = (await acting_operator(self._pool, door.user, by or self._operator)).agent_id
        rows = await settle_deliveries(self._pool, door, kind, deliveries, note, who, attempts or {})
        return ActResult("accepted", {"deliveries": rows, "by": who})

    async def answer(
        self,
        packet_id: UUID,
        outcome: AnswerOutcome,
        note: str | None,
        person: str | None,
        seen: str | None = None,
        content: Mapping[str, JsonValue] | None = None,
    ) -> ActResult:
        """Approve or deny what an agent asks people. Raises InputUnusable, ServiceAway, BusError."""
        door = find_door(self._settings)
        if person is not None and person not in await self.voices(person):
            add = f"apc agent add {person} --person --role ROLE --via {door.user}"
            way = f"start `apc up --person {person}:ROLE`" if door.is_socket else f"`{add}`"
            raise InputUnusable(f"{person} is no registered person for whom the broker user {door.user} speaks: {way}")
        form = AnswerForm(packet_id, outcome, note, person, seen, content)
        async with door.open() as bus:
            who = await answer_over(bus, self._pool, door.shards, form)
        return ActResult("accepted", {"outcome": outcome.value, "by": who})

    async def settle_effect(self, effect: EffectId, result: JsonValue, by: str | None, *, is_made: bool) -> ActResult:
        """Settle an effect whose outcome is unknown, and wait until the log says so.

        Raises InputUnusable, ServiceAway, BusError. The decision stands when the log does not say so in time.
        """
        door, settler = find_door(self._settings), self._settling()
        who = (await acting_operator(self._pool, door.user, by or self._operator)).agent_id
        try:
            value = result_value(result)
            store = PostgresEffectStore(settler, is_patient=False)
            kept, entry = await settle_kept(store, effect, value, who, not is_made)
        except (EffectSettled, ValueUnserialisable) as error:
            raise InputUnusable(str(error)) from error
        detail = {"state": "MADE" if is_made else "RELEASED", "by": who, "is_logged": False}
        if kept is not None:
            await report_settled(self._pool, door, kept, entry, who)
            detail["is_logged"] = await self._is_logged(kept, entry)
        return ActResult("accepted", detail)

    async def _is_logged(self, kept: EffectRecord, entry: EffectEntry) -> bool:
        """Return whether the log has the entry, after waiting for it."""
        place = (kept.session_id, kept.effect_id.packet_id)

        async def is_there() -> bool:
            effects = (await effects_of(self._pool, [place])).get(place, [])
            rows = [row for one in effects if one.key == kept.effect_id.key for row in one.entries]
            return any((row.entry, row.claim) == (entry, kept.claim_id) for row in rows)

        try:
            await until(is_there, PATIENCE)
        except TimeoutError:
            return False
        return True

    async def acknowledge(self, issue: IssueKey, note: str, seen_until: datetime, by: str | None) -> ActResult:
        """Record in the log that somebody knows of an issue. Raises InputUnusable, ServiceAway."""
        door, settler = find_door(self._settings), self._settling()
        who = (await acting_operator(self._pool, door.user, by or self._operator)).agent_id
        return ActResult("accepted", {"id": await acknowledge_as(settler, issue, note, who, seen_until), "by": who})

    def _settling(self) -> asyncpg.Pool:
        if self._settler is None:
            raise InputUnusable(
                "the database user of this server may not settle or acknowledge: an administrator of the database "
                "grants it the role apc_settler"
            )
        return self._settler

    async def signal(self, session_id: str, signal: Signal, reason: str | None, by: str | None) -> ActResult:
        """Pause, resume or stop a session. Raises InputUnusable, ServiceAway, BusError."""
        door, named = find_door(self._settings), by or self._operator
        state, who = await signal_over(self._pool, door, session_id, signal, named, reason)
        return ActResult("accepted", {"state": state, "by": who})


# Look at the queues of orchestrators, persisters and agents, through the broker or the socket of an in-process system.


class QueueProbe:
    """Asks the system that the settings name; each look opens its own connection.

    Args:
        settings: broker and shards, or the data folder.
    """

    def __init__(self, settings: BusSettings) -> None:
        self._settings = settings

    async def depths(self) -> dict[str, QueueDepth]:
        """Return queue -> depth. Raises InputUnusable, ServiceAway, BusError."""
        if not self._settings.amqp_nodes:
            async with open_acts(self._settings.data_dir) as sender:
                return await sender.depths()
        names = [queue(shard) for shard in range(self._settings.shards) for queue in (gate_queue, log_queue)]
        async with open_bus(self._settings) as bus:
            return {name: await bus.depth(name) for name in names}

    async def inboxes(self, agents: Mapping[str, str | None]) -> dict[str, QueueDepth]:
        """Return agent -> depth of its queues, or those of its host. Raises InputUnusable, ServiceAway, BusError."""
        if not self._settings.amqp_nodes:
            async with open_acts(self._settings.data_dir) as sender:
                return await sender.inboxes(list(agents))
        async with open_bus(self._settings) as bus:
            return await inbox_depths(bus, agents)


# Who may reach the web console, and who asks: a token on loopback, or accounts over TLS.


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a server listens, and whom it answers."""

    host: str
    port: int
    authority: Accounts | LocalToken
    hosts: frozenset[str]
    tls: TlsFiles | None
    settings: WebSettings

    @property
    def accounts(self) -> Accounts | None:
        """The people who log in; None where a token is enough."""
        return self.authority if isinstance(self.authority, Accounts) else None

    @property
    def scheme(self) -> str:
        """`https` when the server itself speaks TLS, else `http`."""
        return "http" if self.tls is None else "https"

    def guarded(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind its guards."""
        guarded = AccessGuard(app, self.authority)
        proxies = self.settings.web_trusted_proxies
        return BehindProxies(guarded, proxies) if proxies else guarded


def reach_of(listen: str, settings: WebSettings) -> Reach:
    """Return where to listen and whom to answer.

    Raises:
        InputUnusable: listen is no HOST:PORT; accounts without TLS; others could reach a server without accounts, or
    one whose names are not set; the file of the token may be known to others.
    """
    host, port = listen_address(listen)
    users, tls = settings.web_users_file, _tls(settings)
    if users is None and not is_loopback(host):
        raise InputUnusable(
            f"--listen {listen}: others could reach it, and it has no accounts: set APC_WEB_USERS_FILE, or listen on "
            "127.0.0.1 and use `ssh -L` from another machine"
        )
    if users is not None and tls is None and not settings.web_trusted_proxies:
        raise InputUnusable(
            "passwords need TLS: set APC_WEB_TLS_CERT and APC_WEB_TLS_KEY, or APC_WEB_TRUSTED_PROXIES when a proxy "
            "ends TLS in front of this server"
        )
    if not is_loopback(host) and not settings.web_hosts:
        raise InputUnusable(f"--listen {listen}: set APC_WEB_HOSTS to the names by which browsers reach it")
    if users is not None:
        read_users(users)
    authority = LocalToken(KeptToken(BusSettings().data_dir)) if users is None else Accounts(UsersFile(users))
    hosts = frozenset(name.lower() for name in settings.web_hosts)
    return Reach(host, port, authority, hosts, tls, settings)


def _tls(settings: WebSettings) -> TlsFiles | None:
    certificate, key = settings.web_tls_cert, settings.web_tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputUnusable("APC_WEB_TLS_CERT and APC_WEB_TLS_KEY go together: set both")
    files = TlsFiles(certificate, key)
    files.check("APC_WEB")
    return files


# Run the web console: open the log, serve the API and the page until Ctrl-C.

_CONNECTIONS = 256
_GRACE_SECONDS = 2
"""How long open requests may take after Ctrl-C: a stream never ends by itself."""
_LINK = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>apc web console</title>
<meta http-equiv="refresh" content="0; url={link}"><a href="{link}">Open the web console</a>
</html>
"""


@dataclass(frozen=True, slots=True)
class WebForm:
    """The options that the user gave."""

    run_id: str | None
    listen: str
    is_read_only: bool
    opens_browser: bool
    agent: str | None = None
    """The agent of the chat, as module:agent."""
    is_service: bool = False
    """Whether it has health pages (APC_HEALTH_PORT), as the other services have."""


async def serve_web(form: WebForm) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        InputUnusable: a setting does not fit (`reach_of`), another process listens there, there is no log, or it
            holds no such run.
        ServiceAway: the database fails at the start.
    """
    reach = reach_of(form.listen, WebSettings())
    if ConsoleSettings().supervised:
        end_with_supervisor()
    # Listens before it prints the address: another process there would be sent the token.
    with open_listeners(reach.host, reach.port, or_free_port=ConsoleSettings().supervised) as listeners:
        await _serve(form, reach, listeners)


async def _serve(form: WebForm, reach: Reach, listeners: list[socket]) -> None:
    port = int(listeners[0].getsockname()[1])
    async with _opened(form, reach) as services, health_pages(services.pool, is_wanted=form.is_service):
        server = make_server(
            reach.guarded(make_app(services)),
            reach.host,
            port,
            limits=HttpLimits(connections=_CONNECTIONS),
            graceful_seconds=_GRACE_SECONDS,
            hosts=reach.hosts,
            tls=reach.tls,
        )
        if isinstance(reach.authority, Accounts):
            echo(
                f"apc ui: serves {reach.scheme}://{form.listen}/ with accounts until Ctrl-C",
                file=sys.stderr,
                flush=True,
            )
            await server.serve(listeners)
            return
        link = write_link(BusSettings().data_dir, reach.host, port, form.run_id, reach.authority.token)
        try:
            say_link(reach.host, port, link, opens_browser=form.opens_browser)
            await server.serve(listeners)
        finally:
            link.unlink(missing_ok=True)


@asynccontextmanager
async def _opened(form: WebForm, reach: Reach) -> AsyncIterator[Services]:
    bus, database = BusSettings(), DatabaseSettings()
    contract = load_contract(OrchestratorSettings().contract)
    async with database_url(bus, database) as url, AsyncExitStack() as stack:
        pool = await open_reader(url, PATIENCE)
        state = await open_state_reader(url, PATIENCE)
        settler = None if form.is_read_only else await open_settler(url, PATIENCE)
        verifier = LogVerifier(url)
        try:
            await _check(pool, form.run_id)
            why_no_acts = "this server was started with --read-only" if form.is_read_only else None
            chat = await chats_of(stack, form)
            yield Services(
                pool=pool,
                state=state,
                contract=contract,
                key_of=log_keys(),
                feed=Feed(pool, contract),
                is_embedded=database.url is None,
                run_id=form.run_id,
                acts=None if why_no_acts else OperatorActs(pool, bus, reach.settings.web_operator, settler),
                why_no_acts=why_no_acts,
                accounts=reach.accounts,
                verifier=verifier,
                probe=CachedProbe(QueueProbe(bus)),
                chats=None if isinstance(chat, str) else chat,
                why_no_chat=chat if isinstance(chat, str) else None,
            )
        finally:
            await verifier.cancel()
            if settler is not None:
                settler.terminate()
            state.terminate()
            pool.terminate()


async def _check(pool: asyncpg.Pool, run_id: str | None) -> None:
    try:
        if not await holds_log(pool):
            raise InputUnusable("this database holds no log: run `apc migrate`")
        is_expected = ConsoleSettings().supervised  # the run of the command that started us begins soon
        if run_id is not None and not is_expected and not await figures_of_runs(pool, [run_id]):
            raise InputUnusable(f"--run: the log holds no run {run_id!r}: `apc session list` shows them")
    except DATABASE_AWAY as error:
        raise ServiceAway(f"the database failed: {error}") from error


def log_keys() -> KeyOf:
    """Return the public keys of the log; of no shard when this machine has no key of it."""
    try:
        signer = load_signer(LogKeySettings())
    except LogKeyMissing:
        return lambda shard: None

    def key_of(shard: int) -> PublicKey | None:
        return signer.public_key(shard)

    return key_of


def write_link(folder: Path, host: str, port: int, run_id: str | None, token: str) -> Path:
    """Write the file, mode 0600, that leads a browser to the page with the token. Raises InputUnusable."""
    path = "" if run_id is None else f"runs/{quote(run_id, safe='')}"
    name = f"[{host}]" if ":" in host else host
    link = f"http://{name}:{port}/{path}#token={token}"
    file = folder.absolute() / f"ui-{port}.html"
    try:
        write_private(file, _LINK.format(link=html.escape(link, quote=True)))
    except OSError as error:
        raise InputUnusable(f"cannot write {file}: {error.strerror}") from error
    return file


def renew_links() -> None:
    """Replace the token, and print the files that lead to running servers with the new one. Raises InputUnusable."""
    links = renew_token(BusSettings().data_dir)
    echo("apc ui: a new token is in force; who has the old one is out, at servers that run, too", file=sys.stderr)
    for link in links:
        echo(f"apc ui: open {link.as_uri()} in a browser: it has the token", file=sys.stderr)


def say_link(host: str, port: int, file: Path, *, opens_browser: bool) -> None:
    """Print where the page is, and open it when there is a browser. The token is in the file alone."""
    echo(f"apc ui: serves http://{host}:{port}/ until Ctrl-C", file=sys.stderr)
    echo(f"apc ui: open {file.as_uri()} in a browser: it has the token", file=sys.stderr, flush=True)
    if opens_browser:
        webbrowser.open(file.as_uri())
