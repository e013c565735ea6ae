"""TLS to Postgres with generated certificates, ended by a proxy in front of the run's server, as a pooler would.

The embedded PostgreSQL is built without TLS; `SSLRequest` and the handshake are the same no matter who ends it
(PostgreSQL documentation, "SSL Session Encryption").
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr
from tests.integration.privilege.certificates import Certificates

from apc_bus.database import open_pool
from apc_bus.errors import DatabaseUnavailable
from apc_bus.settings import DatabaseSettings
from apc_persister.database.migrate import migrate

PATIENCE = timedelta(minutes=1)
REQUEST_BYTES = 8
"""An SSLRequest: its length and a code."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@asynccontextmanager
async def served(postgres_url: str, certificate: Path | None, authority: Path | None = None) -> AsyncIterator[int]:
    """The port of a server with this certificate before the database; None = one that speaks no TLS."""
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        context.load_cert_chain(certificate)
        context.verify_mode = ssl.CERT_NONE if authority is None else ssl.CERT_REQUIRED

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(REQUEST_BYTES)
            writer.write(b"N" if context is None else b"S")
            await writer.drain()
            if context is not None:
                await writer.start_tls(context)
                await between(reader, writer, postgres_url)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client did not like the certificate
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, postgres_url: str) -> None:
    """Pass on what either side says until one leaves."""
    theirs, ours = await connect(postgres_url)
    copies = [asyncio.create_task(copy(reader, ours)), asyncio.create_task(copy(theirs, writer))]
    await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    for task in copies:
        task.cancel()
    ours.close()


async def connect(postgres_url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(postgres_url)
    folder = parse_qs(parts.query).get("host")
    if folder:
        return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.5432")
    return await asyncio.open_connection(parts.hostname, parts.port or 5432)


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
        await target.drain()


def settings(
    postgres_url: str, port: int, authority: Path | None, certificate: Path | None = None, host: str = "localhost"
) -> DatabaseSettings:
    """Return the same user and database, behind that port."""
    parts = urlsplit(postgres_url)
    credentials = parts.netloc.rpartition("@")[0] or "postgres"
    return DatabaseSettings(
        database_url=SecretStr(f"postgresql://{credentials}@{host}:{port}{parts.path}"),
        database_ca_file=authority,
        database_cert_file=certificate,
        database_key_file=certificate,
    )


async def refusal(given: DatabaseSettings) -> str:
    """Return what opening a pool says; at once, for no waiting mends it."""
    assert given.url is not None
    with pytest.raises(DatabaseUnavailable) as refused:
        async with asyncio.timeout(PATIENCE.total_seconds() / 2):
            await open_pool(given.url, wait=PATIENCE)
    return str(refused.value)


@pytest.mark.parametrize("with_certificate", [False, True])
async def test_the_database_over_tls(postgres_url: str, certificates: Certificates, with_certificate: bool) -> None:
    server, client = certificates.issue("server", "localhost"), certificates.issue("client", "client.example")
    async with served(postgres_url, server, certificates.authority if with_certificate else None) as port:
        given = settings(postgres_url, port, certificates.authority, client if with_certificate else None)
        assert given.url is not None
        pool = await open_pool(given.url)
        assert await pool.fetchval("SELECT count(*) FROM apc_log.agent_packets") == 0
        await pool.close()
        await migrate(given.url)  # alembic's own connection


async def test_an_authority_that_is_not_trusted(postgres_url: str, certificates: Certificates) -> None:
    async with served(postgres_url, certificates.issue("server", "localhost")) as port:
        said = await refusal(settings(postgres_url, port, certificates.other_authority))
    assert "its certificate is of an authority that is not trusted: check APC_DATABASE_CA_FILE" in said


async def test_a_certificate_for_another_name(postgres_url: str, certificates: Certificates) -> None:
    async with served(postgres_url, certificates.issue("server", "db.example")) as port:
        assert "another host name" in await refusal(settings(postgres_url, port, certificates.authority))


async def test_a_certificate_that_has_expired(postgres_url: str, certificates: Certificates) -> None:
    async with served(postgres_url, certificates.issue("server", "localhost", is_expired=True)) as port:
        assert "has expired: renew it" in await refusal(settings(postgres_url, port, certificates.authority))


async def test_a_server_without_tls(postgres_url: str, certificates: Certificates) -> None:
    async with served(postgres_url, None) as port:
        assert "does not speak TLS" in await refusal(settings(postgres_url, port, certificates.authority))


def test_what_the_url_says_itself_stays(certificates: Certificates) -> None:
    given = DatabaseSettings(
        database_url=SecretStr("postgresql://u:p%2F@h/d?sslmode=verify-ca&application_name=a%20b"),
        database_ca_file=certificates.authority,
    )
    assert given.url is not None
    query = parse_qs(urlsplit(given.url).query)
    assert query == {
        "sslmode": ["verify-ca"],
        "application_name": ["a b"],
        "sslrootcert": [str(certificates.authority)],
    }
    assert urlsplit(given.url).netloc == "u:p%2F@h"
