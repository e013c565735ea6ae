"""The token of a loopback server outlives a restart: its owner alone knows it, a new one ends it, it is not sent."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest
from starlette.datastructures import Headers
from tests.support.apc_command import ApcCommand
from tests.web.conftest import SERVER, WebBench

from apc_cli.commands.ui import renew_links, write_link
from apc_contracts.errors import InputUnusable
from apc_web import local_token
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.local_token import KeptToken, LocalToken, proof_of

PORT = 8083
FOREIGN = "f" * 43
"""A token that somebody else knows."""


def bearer(value: str) -> Headers:
    """Return the headers of a request with this proof or token."""
    return Headers({"Authorization": f"Bearer {value}"})


def start_of(authority: LocalToken) -> str:
    """Return the start that a server names when it refuses."""
    found = re.fullmatch(r'Bearer start="([0-9a-f]{64})"', authority.challenge() or "")
    assert found is not None
    return found[1]


def is_known(authority: LocalToken, value: str, port: int = PORT) -> bool:
    """Return whether a server knows who sends this."""
    return authority.caller_of(bearer(value), port) is not None


def test_links_outlive_a_restart_and_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first, again = KeptToken(folder)(), KeptToken(folder)()
    assert first == again and first is not None
    assert (folder / "ui-token").stat().st_mode & 0o777 == 0o600
    assert is_known(LocalToken(KeptToken(folder)), first)
    assert KeptToken(tmp_path / "other")() != first


def readable_by_others(file: Path) -> None:
    """Put a token there that every user can read."""
    file.write_text(FOREIGN)
    file.chmod(0o644)


def writable_by_the_group(file: Path) -> None:
    """Put a token there that the group can replace."""
    file.write_text(FOREIGN)
    file.chmod(0o620)


def a_link(file: Path) -> None:
    """Lead to a token that somebody else chose."""
    file.with_name("theirs").write_text(FOREIGN)
    file.with_name("theirs").chmod(0o600)
    file.symlink_to(file.with_name("theirs"))


def owned_by_another(file: Path) -> None:
    """Put a token there that is another user's: the test asks as a user who is not its owner."""
    file.write_text(FOREIGN)
    file.chmod(0o600)


@pytest.mark.parametrize("place", [readable_by_others, writable_by_the_group, a_link, owned_by_another])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_token_that_others_may_know_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Callable[[Path], None], is_guarded: bool
) -> None:
    file = tmp_path / "ui-token"
    place(file)
    if place is owned_by_another:
        monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    if not is_guarded:
        monkeypatch.setattr(local_token, "read_private", lambda path, most: path.read_text())
        assert is_known(LocalToken(KeptToken(tmp_path)), FOREIGN), "who put it there gets in"
        return
    with pytest.raises(InputUnusable, match="--new-token"):
        KeptToken(tmp_path)


@pytest.mark.parametrize("content", ["", "short", "x" * 44, "ü" * 30, FOREIGN[:-1] + "\0"])
def test_what_is_no_token_lets_nobody_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    file = tmp_path / "ui-token"
    file.write_text(content)
    file.chmod(0o600)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(local_token, "_TOKEN", re.compile(".*", re.DOTALL))
        assert is_known(LocalToken(KeptToken(tmp_path)), content) or len(content) > 10, "what is easy to guess"
    with pytest.raises(InputUnusable):
        KeptToken(tmp_path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "fifo").replace(file)
    with pytest.raises(InputUnusable):  # and does not wait for a writer
        KeptToken(tmp_path)


def test_a_running_server_knows_nobody_while_others_may_know_the_token(tmp_path: Path) -> None:
    token = KeptToken(tmp_path)()
    assert token is not None
    unguarded = LocalToken(lambda: token)
    authority = LocalToken(KeptToken(tmp_path))
    caller = authority.caller_of(bearer(token), PORT)
    assert caller is not None and authority.is_still(caller)
    file, aside = tmp_path / "ui-token", tmp_path / "aside"
    for spoil, mend in (
        (lambda: file.chmod(0o644), lambda: file.chmod(0o600)),
        (lambda: file.rename(aside), lambda: aside.rename(file)),
    ):
        spoil()
        assert not is_known(authority, token) and not authority.is_still(caller)
        assert is_known(unguarded, token), "the look at the file is what refuses"
        mend()
        assert is_known(authority, token)


async def test_an_old_token_gets_401_as_soon_as_there_is_a_new_one(
    bench: WebBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APC_DATA_DIR", str(tmp_path))
    kept = KeptToken(tmp_path)
    old = kept()
    assert old is not None
    authority, unguarded = LocalToken(kept), LocalToken(lambda: old)
    link = write_link(tmp_path, "127.0.0.1", PORT, None, old)
    transport = httpx.ASGITransport(AccessGuard(make_app(bench.services), authority))
    async with httpx.AsyncClient(transport=transport, base_url=SERVER) as client:

        async def status(value: str) -> int:
            return (await client.get("/api/v1/runs", headers=dict(bearer(value)))).status_code

        proof = proof_of(old, start_of(authority), PORT)
        assert [await status(old), await status(proof)] == [200, 200]
        stream = authority.caller_of(bearer(proof), PORT)
        assert stream is not None and authority.is_still(stream)
        renew_links()
        new = kept()
        assert new is not None and new != old
        assert [await status(old), await status(proof)] == [401, 401]
        assert not authority.is_still(stream), "streams that it opened end, too"
        assert await status(proof_of(new, start_of(authority), PORT)) == 200
        assert is_known(unguarded, old), "a server that keeps what it read at its start lets it in"
        assert f"#token={new}" in link.read_text() and old not in link.read_text()
        assert link.stat().st_mode & 0o777 == 0o600


def test_what_a_page_sends_is_of_no_use_to_who_hears_it(tmp_path: Path) -> None:
    """While the server is away another user listens on its port, and an open page asks there every 3 s."""
    kept = KeptToken(tmp_path)
    token = kept()
    assert token is not None
    theirs = "f" * 64
    heard = proof_of(token, theirs, PORT)  # the listener names another start
    back = LocalToken(kept)
    assert not is_known(back, heard)
    assert is_known(back, token), "the token itself, which pages sent before, would be known"
    # Or it repeats the start of a server that runs on another port at the same time, and passes the proof on to it.
    elsewhere = LocalToken(kept)
    passed_on = proof_of(token, start_of(elsewhere), PORT)
    assert not is_known(elsewhere, passed_on, port=9_000)
    assert is_known(elsewhere, passed_on, port=PORT), "the port is what refuses"
    before = proof_of(token, start_of(elsewhere), 9_000)
    assert is_known(elsewhere, before, port=9_000) and not is_known(LocalToken(kept), before, port=9_000)


def test_page_and_server_prove_alike() -> None:
    """`token.test.ts` of the page has the same value."""
    expected = "acd28cb6f440f086ed8ea49dc0953ab4b67d998772b5bf8ec2d32b87b1ea3b75"
    assert proof_of("a-token", "0123456789abcdef" * 4, PORT) == expected


@pytest.mark.long
async def test_the_token_is_in_no_log_process_list_or_referrer(
    bench: WebBench, tmp_path: Path, postgres_url: str
) -> None:
    apc = ApcCommand(tmp_path)
    server = apc.start("ui", "--no-browser", "--listen", "127.0.0.1:0", given={"APC_DATABASE_URL": postgres_url})
    assert server.stderr is not None
    try:
        lines = [server.stderr.readline(), server.stderr.readline()]
        url = lines[0].split("serves ")[1].split("/ until")[0]
        token = (tmp_path / ".apc" / "ui-token").read_text()
        refused = httpx.get(f"{url}/api/v1/runs?token={FOREIGN}", headers={"Authorization": f"Bearer {FOREIGN}"})
        assert (refused.status_code, token in str(refused.headers) + refused.text) == (401, False)
        answer = httpx.get(f"{url}/api/v1/runs", headers={"Authorization": f"Bearer {token}"})
        assert (answer.status_code, answer.headers["referrer-policy"]) == (200, "no-referrer")
        told = [*psutil.Process(server.pid).cmdline(), *psutil.Process(server.pid).environ().values()]
    finally:
        server.send_signal(signal.SIGINT)
        _, rest = server.communicate(timeout=30)
    assert not any(token in one for one in [*told, *lines, rest])
    assert any(token in one for one in [*lines, f"{url}/#token={token}"]), "a printed link would hold it"
