"""Checkpoints leave the database as they are made, oldest first, and again after a crash."""

import asyncio
import os
import resource
import signal
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import asyncpg
import pytest
from tests.support.log import LogBench, ScriptedGate, packet_entry
from tests.support.waiting import until

from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_log.offline_verifier import parse_note, split_notes
from apc_persister.errors import ExportFailed
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.export import Exporter, Folder, Objects, name_of, open_target
from apc_persister.service import Persister

SIGNER = load_signer(PersisterSettings())
INTERVAL = timedelta(milliseconds=10)
LOCKED = "SELECT ctid::text, xmin::text, xmax::text FROM apc_log.checkpoint_exports"
NOTED = "SELECT shard, tree_size, xmin::text FROM apc_log.checkpoint_exports WHERE target = $1 ORDER BY shard"
EXPORT = """
import asyncio, sys
from datetime import timedelta
from apc_bus.database import open_pool
from apc_persister.evidence.export import Exporter

async def main():
    pool = await open_pool(sys.argv[1])
    await Exporter(pool, 1, sys.argv[2], timedelta(seconds=1)).run(asyncio.Event())

asyncio.run(main())
"""


def sizes_in(file: Path) -> list[int]:
    key = SIGNER.public_key(0)
    return [parse_note(text).check(key).size for text in split_notes(file.read_text(encoding="utf-8"))]


async def write_checkpoints(bench: LogBench, count: int) -> None:
    for _ in range(count):
        await bench.gate.log([packet_entry()])
        await bench.write()


async def export_once(exporter: Exporter) -> None:
    stop = asyncio.Event()
    stop.set()
    await exporter.run(stop)


def _has_exported_more(persister: Persister, than: int) -> bool:
    return persister.exporter.exported > than


async def test_a_running_persister_exports(bench: LogBench, tmp_path: Path) -> None:
    bench.settings = PersisterSettings(checkpoints_url=str(tmp_path), checkpoint_interval=INTERVAL)
    await bench.gate.open()
    async with bench.writing() as persister:
        for exported in range(3):
            await bench.gate.log([packet_entry()])
            await until(partial(_has_exported_more, persister, exported))
        assert persister.exporter.exposed_seconds == 0
        assert persister.exporter.exported_age_seconds < 20
        await bench.gate.log([packet_entry()])
        await until(bench.has_rows("log_checkpoints", 4))
    assert sizes_in(tmp_path / "shard-0.checkpoints") == [1, 2, 3, 4], "the last one at the end of the process"


async def test_a_new_place_gets_everything_and_a_failing_one_does_not_lose_its_turn(
    bench: LogBench, tmp_path: Path
) -> None:
    await bench.gate.open()
    await write_checkpoints(bench, 2)
    blocked = tmp_path / "blocked"
    blocked.write_text("no folder")
    exporter = Exporter(bench.pool, 1, str(blocked), INTERVAL)
    await export_once(exporter)
    assert exporter.failures == 1 and exporter.exposed_seconds > 0
    blocked.unlink()
    await export_once(exporter)
    assert sizes_in(blocked / "shard-0.checkpoints") == [1, 2] and exporter.exposed_seconds == 0
    other = Exporter(bench.pool, 1, (tmp_path / "other").as_uri(), INTERVAL)
    await export_once(other)
    assert sizes_in(tmp_path / "other" / "shard-0.checkpoints") == [1, 2]


async def test_shards_are_exported_together_and_one_that_fails_holds_up_none_of_the_others(
    pool: asyncpg.Pool, tmp_path: Path
) -> None:
    broker = InMemoryBroker(build_topology(shards=4))
    gates = [ScriptedGate(broker.connect("orchestrator"), shard) for shard in range(4)]
    bench = LogBench(gates[0], broker.connect("persister"), pool, PersisterSettings(shards=4))
    for gate in gates:
        await gate.open()
        await gate.log([packet_entry()])
    await bench.write()
    (tmp_path / "shard-1.checkpoints").mkdir()
    exporter = Exporter(pool, 4, str(tmp_path), INTERVAL)
    await export_once(exporter)
    assert exporter.failures == 1 and exporter.exported == 3 and exporter.exposed_seconds > 0
    noted = await pool.fetch(NOTED, name_of(str(tmp_path)))
    assert [(row["shard"], row["tree_size"]) for row in noted] == [(0, 1), (1, 0), (2, 1), (3, 1)]
    assert len({row["xmin"] for row in noted}) == 1, "one transaction"
    (tmp_path / "shard-1.checkpoints").rmdir()
    await export_once(exporter)
    assert exporter.exported == 4 and exporter.exposed_seconds == 0
    for shard in range(4):
        assert len(list(split_notes((tmp_path / f"shard-{shard}.checkpoints").read_text()))) == 1


async def test_a_look_without_news_locks_nothing(bench: LogBench, tmp_path: Path) -> None:
    """With many shards it cost four statements and a commit for each of them, twice a second."""
    await bench.gate.open()
    await write_checkpoints(bench, 1)
    exporter = Exporter(bench.pool, 1, str(tmp_path), INTERVAL)
    await export_once(exporter)
    before = await bench.pool.fetch(LOCKED)
    await export_once(exporter)
    assert before and await bench.pool.fetch(LOCKED) == before
    await write_checkpoints(bench, 1)
    await export_once(exporter)
    assert exporter.exported == 2


async def test_killed_after_an_export(bench: LogBench, postgres_url: str, tmp_path: Path) -> None:
    await bench.gate.open()
    await write_checkpoints(bench, 3)
    environment = {**os.environ, "APC_CRASH_AT": "persister.after_export"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", EXPORT, postgres_url, str(tmp_path), stdout=PIPE, stderr=PIPE, env=environment
    )
    output, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, (output + errors).decode()
    await export_once(Exporter(bench.pool, 1, str(tmp_path), INTERVAL))
    assert sizes_in(tmp_path / "shard-0.checkpoints") == [1, 2, 3, 1, 2, 3], "again: at least once"


async def test_a_torn_note_is_cut_before_the_next(tmp_path: Path) -> None:
    note = SIGNER.sign(0, 7, b"r" * 32)
    await Folder(tmp_path).put(0, 7, f"{note}\n")
    file = tmp_path / "shard-0.checkpoints"
    whole = file.read_bytes()
    for torn in (1, len(whole) - 1, whole.index(b"\n\n") + 2):
        file.write_bytes(whole + whole[:torn])
        await Folder(tmp_path).put(0, 7, f"{note}\n")
        assert file.read_bytes() == whole + whole


@pytest.mark.parametrize(
    "behind",
    [b"x" * 46_000, bytes(8192), b"apc-log/0\n7\n", b"\xe2\x80\x94 apc-log/0 AAAA\n\n"],
    ids=["garbage", "zeros", "torn note", "signature of nothing"],
)
async def test_evidence_is_never_cut_when_no_whole_note_stands_before(tmp_path: Path, behind: bytes) -> None:
    file = tmp_path / "shard-0.checkpoints"
    note = f"{SIGNER.sign(0, 7, b'r' * 32)}\n"
    before = note.replace("\n", "\r\n").encode() * 300 + behind
    file.write_bytes(before)
    with pytest.raises(ExportFailed, match=r"shard-0\.checkpoints.*move it away"):
        await Folder(tmp_path).put(0, 7, note)
    assert file.read_bytes() == before


async def test_what_is_longer_than_a_torn_note_is_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "shard-0.checkpoints"
    note = f"{SIGNER.sign(0, 7, b'r' * 32)}\n"
    before = note.encode() + note.replace("\n", "\r\n").encode()
    file.write_bytes(before)
    with pytest.raises(ExportFailed, match="no torn checkpoint"):
        await Folder(tmp_path).put(0, 7, note)
    assert file.read_bytes() == before


async def test_the_first_note_is_completed_when_it_was_torn(tmp_path: Path) -> None:
    file = tmp_path / "shard-0.checkpoints"
    note = f"{SIGNER.sign(0, 7, b'r' * 32)}\n"
    for torn in (0, 1, len(note) - 1):
        file.write_bytes(note.encode()[:torn])
        await Folder(tmp_path).put(0, 7, note)
        assert file.read_text(encoding="utf-8") == note


async def test_a_write_that_failed_is_mended_by_the_next(tmp_path: Path) -> None:
    """A full disk takes a part of a note; the same process exports it again."""
    folder, file = Folder(tmp_path), tmp_path / "shard-0.checkpoints"
    note = f"{SIGNER.sign(0, 7, b'r' * 32)}\n"
    await folder.put(0, 7, note)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(note.encode()) + 50, before[1]))
    try:
        with pytest.raises(ExportFailed, match="too large"):
            await folder.put(0, 8, note)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.stat().st_size > len(note.encode()), "a part was written"
    await folder.put(0, 8, note)
    assert file.read_text(encoding="utf-8") == note + note


async def test_an_object_is_never_replaced_by_another_history() -> None:
    import obstore

    first, second, other = (SIGNER.sign(0, size, root * 32) + "\n" for size, root in ((6, b"q"), (7, b"r"), (7, b"s")))
    objects = Objects("memory:///")
    for notes in (second, first + second, second):
        await objects.put(0, 7, notes)
    with pytest.raises(ExportFailed, match=r"00000007\.checkpoints holds other checkpoints"):
        await objects.put(0, 7, other)
    found = await obstore.get_async(objects._store, "shard-0/00000000000000000007.checkpoints")
    assert bytes(await found.bytes_async()).decode() == first + second


async def test_an_object_store(tmp_path: Path) -> None:
    import obstore

    objects = Objects("memory:///")
    await objects.put(0, 7, SIGNER.sign(0, 7, b"r" * 32))
    found = await obstore.get_async(objects._store, "shard-0/00000000000000000007.checkpoints")
    assert bytes(await found.bytes_async()).decode() == SIGNER.sign(0, 7, b"r" * 32)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[bytes]]]:
    """A server that refuses the first POST and keeps the others."""
    bodies: list[bytes] = []
    answers = [503]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = answers.pop() if answers else 204
            if status == 204:
                bodies.append(body)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook?token=secret", bodies
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_webhook(bench: LogBench, webhook: tuple[str, list[bytes]]) -> None:
    url, bodies = webhook
    await bench.gate.open()
    await write_checkpoints(bench, 2)
    exporter = Exporter(bench.pool, 1, url, INTERVAL)
    await export_once(exporter)
    assert (exporter.failures, bodies) == (1, [])
    await export_once(exporter)
    assert [parse_note(text).checkpoint.size for text in split_notes(bodies[0].decode())] == [1, 2]
    targets = [row[0] for row in await bench.pool.fetch("SELECT target FROM apc_log.checkpoint_exports")]
    assert name_of(url) in targets and not any("secret" in target for target in targets)


def test_a_place_that_does_not_exist() -> None:
    with pytest.raises(ExportFailed, match="APC_CHECKPOINTS_URL"):
        open_target("nowhere://bucket")
