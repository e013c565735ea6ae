"""Run the web console: open the log, make a token, serve the API and the page until Ctrl-C."""

import html
import sys
import webbrowser
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from urllib.parse import quote

import asyncpg

from apc_bus.database import DATABASE_AWAY
from apc_bus.settings import (
    BusSettings,
    ConsoleSettings,
    DatabaseSettings,
    LogKeySettings,
    OrchestratorSettings,
    WebSettings,
)
from apc_console.commands.web.chatting import chats_of
from apc_console.commands.web.health_pages import health_pages
from apc_console.commands.web.queue_probe import QueueProbe
from apc_console.commands.web.reaching import Reach, reach_of
from apc_console.connections.database import PATIENCE, database_url
from apc_console.errors import InputUnusable, ServiceAway
from apc_console.output.terminal import echo
from apc_console.system.running import end_with_supervisor
from apc_contracts.contract.contract import load_contract
from apc_log.heads import holds_log
from apc_log.offline_verifier import PublicKey
from apc_log.queries.session_pages import page_of_runs
from apc_persister.errors import LogKeyMissing
from apc_persister.evidence.checkpoint import load_signer
from apc_web.access import write_private
from apc_web.app import make_app
from apc_web.http import HttpLimits, make_server, open_listeners
from apc_web.live import Feed
from apc_web.pool import open_reader, open_state_reader
from apc_web.queue_looks import CachedProbe
from apc_web.route_services import Acts, KeyOf, Services
from apc_web.verifier import LogVerifier

_CONNECTIONS = 256
_GRACE_SECONDS = 2
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
        if reach.accounts is not None:
            echo(
                f"apc ui: serves {reach.scheme}://{form.listen}/ with accounts until Ctrl-C",
                file=sys.stderr,
                flush=True,
            )
            await server.serve(listeners)
            return
        link = write_link(BusSettings().data_dir, reach.host, port, form.run_id, reach.token)
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
                acts=None if why_no_acts else _acts(pool, bus, reach.settings),
                why_no_acts=why_no_acts,
                accounts=reach.accounts,
                verifier=verifier,
                probe=CachedProbe(QueueProbe(bus)),
                chats=None if isinstance(chat, str) else chat,
                why_no_chat=chat if isinstance(chat, str) else None,
            )
        finally:
            await verifier.cancel()
            state.terminate()
            pool.terminate()


async def _check(pool: asyncpg.Pool, run_id: str | None) -> None:
    try:
        if not await holds_log(pool):
            raise InputUnusable("this database holds no log: run `apc migrate`")
        is_expected = ConsoleSettings().supervised  # the run of the command that started us begins soon
        if run_id is not None and not is_expected and not await page_of_runs(pool, run_id=run_id, limit=1):
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


def say_link(host: str, port: int, file: Path, *, opens_browser: bool) -> None:
    """Print where the page is, and open it when there is a browser. The token is in the file alone."""
    echo(f"apc ui: serves http://{host}:{port}/ until Ctrl-C", file=sys.stderr)
    echo(f"apc ui: open {file.as_uri()} in a browser: it has the token", file=sys.stderr, flush=True)
    if opens_browser:
        webbrowser.open(file.as_uri())


def _acts(pool: asyncpg.Pool, bus: BusSettings, settings: WebSettings) -> Acts:
    from apc_console.commands.web.operator_acts import OperatorActs  # only a server with acts waits for a client

    return OperatorActs(pool, bus, settings.web_operator)
