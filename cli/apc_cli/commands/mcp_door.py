"""`apc serve mcp`: the log for assistants, over standard input and output, or over HTTP."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings, OrchestratorSettings, WebSettings
from apc_cli.commands.ui import OperatorActs, Reach, health_pages, log_keys, reach_of
from apc_cli.connections import PATIENCE, database_url
from apc_cli.doctor.examination import examine
from apc_cli.errors import InputUnusable
from apc_cli.output.terminal import echo
from apc_cli.system.running import end_with_supervisor
from apc_contracts.contract.contract import load_contract
from apc_log.heads import holds_log
from apc_mcp import Door, make_server
from apc_mcp.server import PATH, bounded_input, end_input, http_app
from apc_web.access import LOCAL_USER, AccountRole, Caller
from apc_web.guard import BehindProxies
from apc_web.http import HttpLimits, open_listeners
from apc_web.http import make_server as make_http_server
from apc_web.local_names import LOOPBACK_NAMES, is_loopback
from apc_web.pool import open_reader, open_settler, open_state_reader
from apc_web.route_services import Reading

_CONNECTIONS = 256
_GRACE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class McpForm:
    """The options that the user gave."""

    listen: str | None
    """HOST:PORT; None = standard input and output."""
    role: AccountRole
    """Of who calls over standard input and output."""
    has_acts: bool


async def serve_mcp(form: McpForm) -> None:
    """Serve until the client ends, or until SIGTERM or SIGINT.

    Raises:
        InputUnusable: a setting does not fit (`reach_of`), another process listens there, acts need the role operator,
            or there is no log.
        DatabaseUnavailable: the database fails at the start.
    """
    if form.listen is None:
        if form.has_acts and not form.role.includes(AccountRole.OPERATOR):
            raise InputUnusable(f"--acts needs the role operator: --role {form.role} only reads")
        async with _opened(form, None) as door:
            await _serve_stdio(door)
        return
    reach = reach_of(form.listen, WebSettings())
    if ConsoleSettings().supervised:
        end_with_supervisor()
    with open_listeners(reach.host, reach.port) as listeners:
        async with _opened(form, reach) as door, health_pages(door.reading.pool, is_wanted=True):
            names = reach.hosts | (LOOPBACK_NAMES if is_loopback(reach.host) else frozenset())
            app = http_app(make_server(door), names)
            proxies = reach.settings.web_trusted_proxies
            server = make_http_server(
                BehindProxies(app, proxies) if proxies else app,
                reach.host,
                int(listeners[0].getsockname()[1]),
                limits=HttpLimits(connections=_CONNECTIONS),
                lifespan=True,
                graceful_seconds=_GRACE_SECONDS,
                hosts=reach.hosts,
                tls=reach.tls,
            )
            token = "accounts" if reach.accounts else f"the token in {BusSettings().data_dir.absolute() / 'ui-token'}"
            where = f"{reach.scheme}://{reach.host}:{listeners[0].getsockname()[1]}{PATH}"
            echo(f"apc serve mcp: serves {where} with {token} until Ctrl-C", file=sys.stderr, flush=True)
            await server.serve(listeners)


async def _serve_stdio(door: Door) -> None:
    loop = asyncio.get_running_loop()
    with bounded_input() as copied:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end_input, copied)
        await make_server(door).run_stdio_async()


@asynccontextmanager
async def _opened(form: McpForm, reach: Reach | None) -> AsyncIterator[Door]:
    bus, database, web = BusSettings(), DatabaseSettings(), WebSettings()
    contract, key_of = load_contract(OrchestratorSettings().contract), log_keys()
    async with database_url(bus, database) as url:
        pool = await open_reader(url, PATIENCE)
        state = await open_state_reader(url, PATIENCE)
        settler = await open_settler(url, PATIENCE) if form.has_acts else None
        try:
            if not await holds_log(pool):
                raise InputUnusable("this database holds no log: run `apc migrate`")
            yield Door(
                Reading(pool, contract, key_of),
                state=state,
                local=Caller(LOCAL_USER, form.role) if reach is None else None,
                authority=None if reach is None else reach.authority,
                acts=OperatorActs(pool, bus, web.web_operator, settler) if form.has_acts else None,
                examine=_findings,
            )
        finally:
            if settler is not None:
                settler.terminate()
            state.terminate()
            pool.terminate()


async def _findings() -> Sequence[Mapping[str, str]]:
    return [finding.row() for finding in await examine()]
