"""Faults in the settings of a door are found before anything is started, in one sentence that names the setting.

The broker and the database that these commands are given do not answer: a command that reached for them would fail for
that reason.
"""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import trustme
from tests.support.apc_command import ApcCommand

from apc_a2a.server import placed
from apc_bus.errors import DatabaseUnavailable
from apc_bus.settings import A2ASettings
from apc_cli.commands.mcp_door import McpForm, serve_mcp
from apc_contracts.errors import ApcError, InputUnusable
from apc_web.access import AccountRole

SERVERS = {"APC_DATABASE_URL": "postgresql://127.0.0.1:1/away", "APC_AMQP_URL": "amqp://127.0.0.1:1/"}
DATABASE = {"APC_DATABASE_URL": SERVERS["APC_DATABASE_URL"]}
SHOP = """
from apc_a2a import A2AMessage
from apc_agents import Agent, HandlerContext, Team

clerk = Agent("clerk", role="clerk", swarm="shop")


@clerk.on(A2AMessage)
async def sell(said: A2AMessage, ctx: HandlerContext) -> A2AMessage:
    return said


team = Team("shop", agents=[clerk], entry="clerk", input=A2AMessage)
"""
TEAM = "shop:team"
UP, SERVE = ("up", "--a2a", TEAM), ("serve", "a2a", TEAM)


class Files:
    """Files that settings name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        authority = trustme.CA()
        one, another = (authority.issue_cert("127.0.0.1") for _ in range(2))
        self.certificate, self.key, self.other_key = (folder / name for name in ("cert.pem", "key.pem", "other.pem"))
        one.cert_chain_pems[0].write_to_path(self.certificate)
        one.private_key_pem.write_to_path(self.key)
        another.private_key_pem.write_to_path(self.other_key)

    def text(self, name: str, content: str, mode: int = 0o600) -> str:
        """Return a file with a content."""
        file = self._folder / name
        file.write_text(content)
        file.chmod(mode)
        return str(file)


@pytest.fixture
def apc(tmp_path: Path) -> ApcCommand:
    (tmp_path / "shop.py").write_text(SHOP)
    return ApcCommand(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def taken() -> Iterator[str]:
    """An address at which another process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


Faults = Callable[[Files, str], tuple[dict[str, str], list[str]]]


def _tls(files: Files, **changed: str) -> dict[str, str]:
    return {"APC_A2A_TLS_CERT": str(files.certificate), "APC_A2A_TLS_KEY": str(files.key), **changed}


A2A_FAULTS: dict[str, Faults] = {
    "no address": lambda files, _: ({"APC_A2A_LISTEN": "8084"}, ["APC_A2A_LISTEN", "HOST:PORT"]),
    "a port in use": lambda files, taken: (
        {"APC_A2A_LISTEN": taken},
        ["APC_A2A_LISTEN", "in use", "name another port"],
    ),
    "open to others without TLS": lambda files, _: (
        {"APC_A2A_LISTEN": "0.0.0.0:0"},
        ["APC_A2A_LISTEN", "set APC_A2A_TLS_CERT and APC_A2A_TLS_KEY"],
    ),
    "open to others without names": lambda files, _: (
        _tls(files, APC_A2A_LISTEN="0.0.0.0:0"),
        ["APC_A2A_LISTEN", "set APC_A2A_HOSTS"],
    ),
    "a URL without a scheme": lambda files, _: ({"APC_A2A_URL": "agents.example.com"}, ["APC_A2A_URL", "https://"]),
    "a certificate without its key": lambda files, _: (
        {"APC_A2A_TLS_CERT": str(files.certificate)},
        ["set both APC_A2A_TLS_CERT and APC_A2A_TLS_KEY"],
    ),
    "no such certificate": lambda files, _: (
        _tls(files, APC_A2A_TLS_CERT="/nowhere.pem"),
        ["APC_A2A_TLS_CERT", "/nowhere.pem", "name a PEM file"],
    ),
    "the key of another certificate": lambda files, _: (
        _tls(files, APC_A2A_TLS_KEY=str(files.other_key)),
        ["APC_A2A_TLS_CERT", "APC_A2A_TLS_KEY", "its own key"],
    ),
    "an authority that is none": lambda files, _: (
        _tls(files, APC_A2A_CLIENT_CA_FILE=files.text("ca.pem", "no certificate")),
        ["APC_A2A_CLIENT_CA_FILE", "certificates in PEM"],
    ),
    "an authority without TLS": lambda files, _: (
        {"APC_A2A_CLIENT_CA_FILE": str(files.certificate)},
        ["APC_A2A_CLIENT_CA_FILE needs APC_A2A_TLS_CERT and APC_A2A_TLS_KEY"],
    ),
    "a key for the card that is none": lambda files, _: (
        {"APC_A2A_CARD_KEY_FILE": files.text("card.pem", "no key")},
        ["APC_A2A_CARD_KEY_FILE", "cannot be read"],
    ),
    "an issuer without keys": lambda files, _: (
        {"APC_A2A_JWT_ISSUER": "https://issuer"},
        ["set APC_A2A_JWT_ISSUER, APC_A2A_JWT_AUDIENCE and APC_A2A_JWKS_FILE, or none"],
    ),
    "keys of an issuer that are none": lambda files, _: (
        {
            "APC_A2A_JWT_ISSUER": "https://issuer",
            "APC_A2A_JWT_AUDIENCE": "door",
            "APC_A2A_JWKS_FILE": files.text("keys.json", "{}"),
        },
        ["APC_A2A_JWKS_FILE", "no JSON Web Key Set"],
    ),
    "a key for push of another length": lambda files, _: (
        {"APC_A2A_PUSH_KEY_FILE": files.text("push.key", "c2hvcnQ=")},
        ["APC_A2A_PUSH_KEY_FILE", "32 bytes in Base64"],
    ),
    "tokens that others can read": lambda files, _: (
        {"APC_A2A_CALLERS_FILE": files.text("callers.json", '{"callers": {}}', 0o644)},
        ["APC_A2A_CALLERS_FILE", "chmod 600"],
    ),
    "tokens that are none": lambda files, _: (
        {"APC_A2A_CALLERS_FILE": files.text("callers.json", '{"callers": {"ida": {"tokens": {"one": "secret"}}}}')},
        ["APC_A2A_CALLERS_FILE", "callers.ida.tokens.one"],
    ),
}
MCP_FAULTS: dict[str, Faults] = {
    "a port in use": lambda files, taken: ({"listen": taken}, ["--listen", "in use", "name another port"]),
    "no address": lambda files, _: ({"listen": "8084"}, ["--listen", "HOST:PORT"]),
    "open to others without accounts": lambda files, _: ({"listen": "0.0.0.0:0"}, ["set APC_WEB_USERS_FILE"]),
    "accounts without TLS": lambda files, _: (
        {"APC_WEB_USERS_FILE": files.text("users.json", '{"users": {}}')},
        ["set APC_WEB_TLS_CERT and APC_WEB_TLS_KEY"],
    ),
    "accounts that are none": lambda files, _: (
        {
            "APC_WEB_USERS_FILE": files.text("users.json", "[]"),
            "APC_WEB_TLS_CERT": str(files.certificate),
            "APC_WEB_TLS_KEY": str(files.key),
        },
        ["users.json"],
    ),
    "the key of another certificate": lambda files, _: (
        {"APC_WEB_TLS_CERT": str(files.certificate), "APC_WEB_TLS_KEY": str(files.other_key)},
        ["APC_WEB_TLS_CERT", "APC_WEB_TLS_KEY", "its own key"],
    ),
    "a key of the log that is none": lambda files, _: (
        {"APC_LOG_KEY": "", "APC_LOG_KEY_FILE": files.text("log.pem", "no key")},
        ["log.pem"],
    ),
}


def one_error(ended: CompletedProcess[str]) -> str:
    """Return what a command says that could not begin: one error, and nothing else."""
    lines = ended.stderr.strip().splitlines()
    assert ended.returncode == 2 and len(lines) == 1, ended
    return lines[0]


@pytest.mark.parametrize("fault", A2A_FAULTS)
def test_a_fault_in_the_settings_of_the_door_of_a2a(
    files: Files, taken: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, words = A2A_FAULTS[fault](files, taken)
    for name, value in {"APC_A2A_LISTEN": "127.0.0.1:0", **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputUnusable) as refused, placed(A2ASettings(), tmp_path):
        pass
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.long
@pytest.mark.parametrize("fault", ["a port in use", "a key for the card that is none"])
@pytest.mark.parametrize("command", [UP, SERVE], ids=["up", "serve"])
def test_the_commands_say_it_before_anything_is_started(
    apc: ApcCommand, files: Files, taken: str, command: tuple[str, ...], fault: str
) -> None:
    given, words = A2A_FAULTS[fault](files, taken)
    servers = DATABASE if command == UP else SERVERS
    said = one_error(apc(*command, given={"APC_A2A_LISTEN": "127.0.0.1:0", **servers, **given}))
    assert all(word in said for word in words), said


@pytest.mark.parametrize("fault", MCP_FAULTS)
async def test_a_fault_in_the_settings_of_the_mcp_server(
    files: Files, taken: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, words = MCP_FAULTS[fault](files, taken)
    listen = given.pop("listen", "127.0.0.1:0")
    for name, value in {"APC_DATA_DIR": str(tmp_path), **DATABASE, **given}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ApcError) as refused:
        await serve_mcp(McpForm(listen, AccountRole.READER, has_acts=False))
    assert all(word in str(refused.value) for word in words), refused.value


async def test_without_a_fault_the_mcp_server_reaches_for_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"APC_DATA_DIR": str(tmp_path), **DATABASE}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DatabaseUnavailable):
        await serve_mcp(McpForm("127.0.0.1:0", AccountRole.READER, has_acts=False))


@pytest.mark.long
def test_without_a_fault_a_system_is_started(apc: ApcCommand) -> None:
    ended = apc(*UP, given={"APC_A2A_LISTEN": "127.0.0.1:0", **DATABASE})
    assert ended.returncode != 0 and "one process, in-process bus" in ended.stderr, ended


@pytest.mark.long
def test_a_door_without_tokens_says_so_and_waits_for_the_broker(apc: ApcCommand) -> None:
    """Tokens may be made later: the door takes them as the file has them."""
    with apc.start(*SERVE, given={"APC_A2A_LISTEN": "127.0.0.1:0", **SERVERS}) as door:
        assert door.stderr is not None
        said = door.stderr.readline()
        waits = door.stderr.readline()
        door.terminate()
    assert "has no token as yet: `apc caller add NAME` makes one" in said and "database_awaited" in waits
