"""People with accounts log in to the page over TLS, and see what their role may."""

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support.web.browser import browse, require_page
from tests.web.conftest import WebBench

from apc_web.access import AccountRole, Accounts, UserRecord, UsersDocument, UsersFile, hash_password, write_users
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.http import TlsFiles, make_server

PASSWORD = "correct horse battery"


def _certificate(folder: Path) -> TlsFiles:
    """Return a certificate of 127.0.0.1 that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    files = TlsFiles(folder / "tls.crt", folder / "tls.key")
    files.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


@pytest.mark.page
@pytest.mark.timeout(300)
async def test_people_log_in_and_see_what_their_role_may(told: WebBench, tmp_path: Path) -> None:
    require_page()
    [refused] = (await told.get("/packets", session_id="s-1", verdict="refused", refusal_code="PHASE_MISMATCH"))[
        "items"
    ]
    file, hashed = tmp_path / "users.json", hash_password(PASSWORD)
    people = {"vera": AccountRole.VIEWER, "rita": AccountRole.READER}
    write_users(file, UsersDocument(users={n: UserRecord(role=role, password=hashed) for n, role in people.items()}))
    accounts = Accounts(UsersFile(file))
    object.__setattr__(told.services, "accounts", accounts)
    app = AccessGuard(make_app(told.services), accounts)
    server = make_server(app, "127.0.0.1", 0, graceful_seconds=1, tls=_certificate(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        running = asyncio.create_task(server.serve(sockets=[listening]))
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        packet = f"{refused['shard']}-{refused['seq']}"
        await browse("accounts.mjs", {"url": url, "run": refused["run_id"], "password": PASSWORD, "packet": packet})
        server.should_exit = True
        await running
