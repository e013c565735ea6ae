"""A pgbouncer of our own in front of a Postgres."""

import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.failover.demotion import Switch, by_way_of, place_of
from tests.support.servers.folders import make_server_folder
from tests.support.servers.ports import free_ports
from tests.support.servers.private_postgres import unprivileged_user
from tests.support.waiting import until

from apc_bus.errors import BusUnavailable

_CONFIG = """
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
logfile = {folder}/log
pool_mode = {mode}
default_pool_size = {size}
server_login_retry = 1
"""


@asynccontextmanager
async def pooled(url: str, mode: str, size: int = 60) -> AsyncIterator[str]:
    """Run a pgbouncer in a mode in front of the server of the URL; yield the URL by way of it.

    Args:
        size: connections that it has to the server.

    Raises:
        BusUnavailable: pgbouncer is not on this machine.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise BusUnavailable("the tests of poolers need pgbouncer: install the package pgbouncer")
    folder, (port,), user = make_server_folder("apc-pooler-"), free_ports(1), unprivileged_user()
    # pgbouncer refuses root, and another user may not reach the socket of the tests' server: a proxy does.
    async with Switch.open(place_of(url)) as server:
        (folder / "users").write_text('"postgres" ""\n')
        config = _CONFIG.format(server=server.port, port=port, folder=folder, mode=mode, size=size)
        (folder / "ini").write_text(config)
        if user is not None:
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, user)
        process = _start(program, folder, user)
        try:
            await until(lambda: _listens(port))
            yield by_way_of(url, port)
        finally:
            process.terminate()
            process.wait(timeout=20)
            shutil.rmtree(folder, ignore_errors=True)


def _start(program: str, folder: Path, user: str | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen([program, "--quiet", folder / "ini"], user=user, stderr=subprocess.DEVNULL)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
