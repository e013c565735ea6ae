"""A malicious agent and the service that takes artifacts for the shared folder."""

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import SecretStr
from starlette.requests import Request
from structlog.testing import capture_logs
from tests.security.artifacts.uploading import (
    DATA,
    HASH,
    LIMITS,
    PATH,
    believe_the_client,
    connect,
    put,
    send,
    service,
    serving,
    stored,
)
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

from apc_bus.artifacts import ArtifactStore, object_key
from apc_bus.errors import ArtifactError, ArtifactServiceAway, BusUnavailable
from apc_bus.rabbit.administration import may_log_in
from apc_bus.settings import BusSettings
from apc_cli.commands import artifact_uploads
from apc_cli.commands.artifact_uploads import ArtifactUploads, UploadLimits, login_check
from apc_cli.errors import InputUnusable


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with service(tmp_path / "store") as found:
        yield found


async def test_an_agent_stores_and_reads_without_writing_the_folder(url: str, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store", uploads=url)
    assert await store.put(DATA) == HASH
    assert await store.get(HASH) == DATA
    assert await store.put(DATA) == HASH, "once more is harmless"

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        yield b"y" * 100_000

    assert len(await store.get(await store.put_stream(parts()))) == 200_000
    assert not list((tmp_path / "store" / "incoming").iterdir())


async def test_bytes_under_another_hash_are_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as unguarded:
        believe_the_client(unguarded, PATH.rpartition("/")[2])
        async with service(tmp_path / "other") as believing:
            assert b" 201 " in await send(believing, put(PATH, b"other bytes"))
    assert (tmp_path / "other" / object_key(HASH)).read_bytes() == b"other bytes"
    assert b" 422 " in await send(url, put(PATH, b"other bytes"))
    assert not stored(tmp_path / "store")


@pytest.mark.parametrize("linked_once", [False, True])
async def test_without_the_guards_it_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked_once: bool
) -> None:
    """Two guards: the look at what is there, and behind it the link that is made once."""

    async def nothing(_: ArtifactUploads, __: str) -> bool:
        return False

    async with service(tmp_path / "store") as url:
        assert b" 201 " in await send(url, put(PATH, DATA))
        believe_the_client(monkeypatch, PATH.rpartition("/")[2])
        monkeypatch.setattr(ArtifactUploads, "_is_there", nothing)
        if not linked_once:
            monkeypatch.setattr(os, "link", shutil.copyfile)
        assert b" 201 " in await send(url, put(PATH, b"other bytes"))
    content = (tmp_path / "store" / object_key(HASH)).read_bytes()
    assert content == (DATA if linked_once else b"other bytes")


async def test_what_is_there_is_never_overwritten(url: str, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store", uploads=url)
    await store.put(DATA)
    place = tmp_path / "store" / object_key(HASH)
    before = place.stat()
    assert b" 200 " in await send(url, put(PATH, b"other bytes"))
    place.write_bytes(b"spoilt by a disk")
    with pytest.raises(ArtifactError, match=r"409 .* nothing is overwritten"):
        await store.put(DATA)
    assert place.read_bytes() == b"spoilt by a disk" and place.stat().st_ino == before.st_ino


async def test_many_who_bring_the_same_bytes_store_them_once(tmp_path: Path) -> None:
    async with service(tmp_path / "store", UploadLimits(1 << 20, free_bytes=0)) as url:
        answers = await asyncio.gather(*(send(url, put(PATH, DATA)) for _ in range(8)))
    assert all(b" 200 " in answer or b" 201 " in answer for answer in answers)
    assert stored(tmp_path / "store") == [tmp_path / "store" / object_key(HASH)]


def any_path(unguarded: pytest.MonkeyPatch) -> None:
    """Take away the rule for a path: what follows the first folder is the name."""
    unguarded.setattr(artifact_uploads, "_PATH", re.compile(r"/sha256/(.+)", re.IGNORECASE))
    unguarded.setattr(artifact_uploads, "object_key", lambda name: f"sha256/{name.removeprefix('sha256:')}")

    async def nothing(_: ArtifactUploads, __: str) -> bool:
        return False

    unguarded.setattr(ArtifactUploads, "_is_there", nothing)


@pytest.mark.parametrize("path", ["/sha256/../../planted", f"{PATH}/../x", PATH.upper()])
async def test_a_path_leads_elsewhere_without_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    name = path[len("/sha256/") :]
    async with service(tmp_path / "store") as url:
        with monkeypatch.context() as unguarded:
            any_path(unguarded)
            believe_the_client(unguarded, name)
            (tmp_path / "store" / "sha256" / PATH.rpartition("/")[2]).mkdir(parents=True)
            assert b" 201 " in await send(url, put(path, b"x"))
        place = tmp_path / "store" / "sha256" / name
        assert place.read_bytes() == b"x", "it stands where the path leads"
        place.unlink()
        assert b" 404 " in await send(url, put(path, b"x"))
        assert not place.exists()


def any_size(_: ArtifactUploads, request: Request) -> int:
    return int(request.headers["content-length"])


async def test_a_body_without_end_is_taken_without_the_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the largest length that the server's parser reads; it refuses itself what is none, as -1."""
    body = b"x" * (2 * LIMITS.max_bytes)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(ArtifactUploads, "_size", any_size)
        unguarded.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**40))
        believed = believe_the_client(unguarded, PATH.rpartition("/")[2])
        async with service(tmp_path / "store", UploadLimits(LIMITS.max_bytes, head_seconds=60, free_bytes=0)) as url:
            reader, writer = await connect(url)
            writer.write(put(PATH, body, "9" * 19))
            await until(lambda: believed.taken == len(body))
            assert not reader.at_eof(), "more than one artifact may have, and only the client ends it"
            writer.close()
            await until(lambda: not stored(tmp_path / "store"))


async def test_sizes_and_methods_are_accepted_without_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b"x" * (1 << 21)
    path = f"/sha256/{hashlib.sha256(large).hexdigest()}"
    parts = b"%x\r\n%b\r\n0\r\n\r\n" % (len(DATA), DATA)
    chunked = put(PATH, parts, len(DATA)).replace(b"Host", b"Transfer-Encoding: chunked\r\nHost")
    async with service(tmp_path / "store", UploadLimits(1 << 22, free_bytes=0)) as url:
        assert b" 201 " in await send(url, put(path, large)), "413 is the bound's answer"
        with monkeypatch.context() as unguarded:
            unguarded.setattr(ArtifactUploads, "_size", any_size)
            assert b" 201 " in await send(url, chunked), "411 is the answer to a body of two lengths"
        with monkeypatch.context() as unguarded:
            unguarded.setattr(artifact_uploads, "_digits", lambda _, path: path.rpartition("/")[2])
            for method in (b"DELETE", b"GET"):
                assert b" 200 " in await send(url, put(PATH, DATA).replace(b"PUT", method)), "405 is the method's"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (put(PATH, b"", 1 << 21), 413),
        (put(PATH, b"", "9" * 19), 413),
        (put(PATH, b"", "9" * 30), 400),
        (put(PATH, b"", "-1"), 400),
        (put(PATH, b"", "٣"), 400),
        (put(PATH, DATA).replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n", 1), 400),
        (put(PATH, DATA).replace(b"Length:", b"Length :"), 400),
        (put(PATH, b"", 3).replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"), 411),
        (put(PATH, DATA).replace(b"127.0.0.1", b"evil.example"), 421),
        (put(PATH, DATA).replace(b"Content", b"Origin: https://evil.example\r\nContent", 1), 403),
        (put("/sha256/../../../etc/passwd", b"x"), 404),
        (put(f"{PATH}/../x", b"x"), 404),
        (put(PATH.upper(), b"x"), 404),
        (f"DELETE {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), 405),
        (f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), 405),
        (b"\x16\x03\x01nonsense\r\n\r\n", 400),
        (b"PUT / HTTP/1.1\r\n" + b"a: b\r\n" * 200_000 + b"\r\n", 400),
    ],
)
async def test_odd_requests_are_refused(url: str, tmp_path: Path, request_: bytes, status: int) -> None:
    assert f" {status} ".encode() in await send(url, request_)
    assert not stored(tmp_path / "store")


async def test_slow_clients_are_cut(tmp_path: Path) -> None:
    limits = UploadLimits(1 << 20, head_seconds=0.2, bytes_per_second=1 << 20, free_bytes=0)
    unlimited = UploadLimits(1 << 20, head_seconds=1e6, free_bytes=0)
    whole = put(PATH, DATA)
    beginnings = (b"", b"PUT ", put(PATH, DATA[:100], len(DATA)))
    async with service(tmp_path / "other", unlimited) as unguarded, service(tmp_path / "store", limits) as url:
        waiting = [await connect(unguarded) for _ in beginnings]
        for beginning, (_, writer) in zip(beginnings, waiting, strict=True):
            writer.write(beginning)
        for beginning in beginnings[:2]:
            assert await send(url, beginning) == b"", "cut before it has asked for anything"
        assert b" 408 " in await send(url, beginnings[2])
        for beginning, (reader, writer) in zip(beginnings, waiting, strict=True):
            writer.write(whole[len(beginning) :])
            assert re.search(rb" 20[01] ", await reader.readline()), "without the limit it kept its place all the time"
            writer.close()
    assert not stored(tmp_path / "store")


async def test_a_client_that_breaks_off_is_no_fault_of_the_store(tmp_path: Path) -> None:
    """An operator who reads `artifact_not_stored` looks at the disk: no client may write that into the log."""
    incoming = tmp_path / "store" / "incoming"
    with capture_logs() as said:
        async with service(tmp_path / "store") as url:
            _, writer = await connect(url)
            writer.write(put(PATH, DATA[:100], len(DATA)))
            await until(lambda: any(incoming.iterdir()))
            writer.transport.abort()
            await until(lambda: not any(incoming.iterdir()))
    assert not said and not stored(tmp_path / "store")


async def test_too_many_clients_are_told_to_come_again(url: str, tmp_path: Path) -> None:
    async with service(tmp_path / "other", UploadLimits(1 << 20, free_bytes=0)) as unguarded:
        waiting = [await connect(unguarded) for _ in range(2)]
        assert b" 201 " in await send(unguarded, put(PATH, DATA)), "without the bound one more is served"
        for _, writer in waiting:
            writer.close()
    waiting = [await connect(url) for _ in range(2)]
    while b" 503 " not in await send(url, put(PATH, DATA)):  # until the service has seen them
        pass
    for _, writer in waiting:
        writer.close()

    async def is_taken() -> bool:
        answer = await send(url, put(PATH, DATA))
        assert any(status in answer for status in (b" 503 ", b" 201 ", b" 200 ")), answer
        return b" 503 " not in answer

    await until(is_taken)


async def test_a_full_disk_is_not_filled(tmp_path: Path) -> None:
    async with service(tmp_path / "other") as url:
        assert await ArtifactStore(tmp_path / "other", uploads=url).put(DATA) == HASH, "without the bound it is stored"
    async with service(tmp_path / "store", UploadLimits(1 << 20, free_bytes=1 << 60)) as url:
        with pytest.raises(ArtifactError, match="nearly full"):
            await ArtifactStore(tmp_path / "store", uploads=url).put(DATA)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_uploads_at_the_same_time_do_not_count_on_the_same_space(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has room for one of them; the first has sent its head alone."""
    size = len(DATA)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=size + size // 2))
    if not is_guarded:
        monkeypatch.setattr(ArtifactUploads, "_unwritten", property(lambda _: 0, lambda _, value: None), raising=False)
    limits = UploadLimits(1 << 20, clients_of_one_address=3, head_seconds=20.0, free_bytes=0)
    other = bytes(reversed(DATA))
    async with service(tmp_path / "store", limits) as url:
        reader, writer = await connect(url)
        writer.write(put(PATH, b"", size).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert b"100 Continue" in await reader.readline()
        second = await send(url, put(f"/sha256/{hashlib.sha256(other).hexdigest()}", other))
        assert (b" 507 " in second) is is_guarded, second
        writer.write(DATA)
        await reader.readline()
        assert b" 201 " in await reader.readline(), "the first has its space"
        writer.close()
        await writer.wait_closed()
        assert b" 20" in await send(url, put(f"/sha256/{hashlib.sha256(other).hexdigest()}", other)), "given back"


async def test_a_service_that_is_away_is_named(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    store = ArtifactStore(tmp_path / "store", uploads=f"http://127.0.0.1:{port}", patience=timedelta(0))
    with pytest.raises(ArtifactError, match="APC_ARTIFACTS_UPLOAD_URL"):
        await store.put(DATA)


async def test_an_upload_waits_for_a_broker_that_is_away(tmp_path: Path) -> None:
    """The service asks the broker for the login: while the broker restarts, a handler must not fail permanently."""
    asked = 0

    async def may_log_in(user: str, password: str) -> bool:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise BusUnavailable("no broker node answers")
        return True

    async with serving(ArtifactUploads(tmp_path / "store", LIMITS, may_log_in)) as url:
        hasty = ArtifactStore(tmp_path / "store", uploads=url, login=("a", "b"), patience=timedelta(0))
        with pytest.raises(ArtifactServiceAway, match="503 no broker node answers"):
            await hasty.put(DATA)
        assert await ArtifactStore(tmp_path / "store", uploads=url, login=("a", "b")).put(DATA) == HASH
    assert asked == 3


async def test_a_start_clears_what_a_crash_left(tmp_path: Path) -> None:
    (tmp_path / "store" / "incoming").mkdir(parents=True)
    (tmp_path / "store" / "incoming" / "half").write_bytes(b"x")
    async with service(tmp_path / "store"):
        assert not stored(tmp_path / "store")


async def test_only_agents_with_a_login_bring_artifacts(tmp_path: Path) -> None:
    asked = []

    async def may_log_in(user: str, password: str) -> bool:
        asked.append(user)
        return (user, password) == ("agent.a-1", "good:one")

    async with service(tmp_path / "open") as unguarded:
        assert b" 201 " in await send(unguarded, put(PATH, DATA)), "without the guard anybody brings them"
    async with serving(ArtifactUploads(tmp_path / "store", LIMITS, may_log_in)) as url:
        assert b" 401 " in await send(url, put(PATH, DATA))
        for login in (("agent.a-1", "bad"), ("agent.a-2", "good:one")):
            with pytest.raises(ArtifactError, match="401"):
                await ArtifactStore(tmp_path / "store", uploads=url, login=login).put(DATA)
        assert not stored(tmp_path / "store")
        store = ArtifactStore(tmp_path / "store", uploads=url, login=("agent.a-1", "good:one"))
        assert await store.put(DATA) == HASH
        await store.put(DATA + b"2")
    assert asked == ["agent.a-1", "agent.a-2", "agent.a-1"], "a good login is asked for once in a while"


async def test_without_a_broker_only_this_machine_brings_artifacts(tmp_path: Path) -> None:
    assert login_check(BusSettings(), "127.0.0.1") is None
    with pytest.raises(InputUnusable, match="APC_AMQP_URL"):
        login_check(BusSettings(), "0.0.0.0")
    async with service(tmp_path / "store") as url:  # what stands behind the refusal asks nobody for a login
        assert b" 201 " in await send(url, put(PATH, DATA))
    assert stored(tmp_path / "store")


async def test_the_broker_knows_the_logins(rabbit_url: str) -> None:
    settings = BusSettings(amqp_url=SecretStr(rabbit_url))
    user, password = settings.broker_login or ("guest", "guest")
    assert await may_log_in(settings, user, password)
    assert not await may_log_in(settings, user, "another")
    assert not await may_log_in(settings, "agent.nobody", password)
