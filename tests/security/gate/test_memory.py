"""What strangers send does not stay in the gate's memory, and fits into what the broker takes."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import psutil
import pytest

from apc_bus.log_batch import ConflictEntry, HopEntry, encode
from apc_contracts import Packet
from apc_orchestrator import batch as batches
from apc_orchestrator.batch import FULL_BYTES, Batch
from apc_orchestrator.entries import size_of
from apc_orchestrator.memory import FLOOD_BYTES, MemoryReturn

Build = Callable[..., Packet[Any]]
BATCHES = "SELECT packet_id, batch_no FROM apc_log.agent_packets WHERE packet_type = 'IDEA' ORDER BY seq"


def conflict(size: int) -> ConflictEntry:
    return ConflictEntry(None, uuid4(), "unreadable", "MALFORMED", "no JSON", b"x" * size, None, None, "agent.red-1")


def test_a_batch_is_full_before_its_message_is_too_large() -> None:
    batch = Batch(1, datetime.now(UTC))
    while not batch.is_full():
        batch.entries.append(conflict(10_000))
    assert 0.9 * FULL_BYTES < len(encode(batch.seal(0, 1))) < 1.1 * FULL_BYTES


def test_the_documents_of_sessions_count() -> None:
    batch = Batch(1, datetime.now(UTC))
    for number in range(3):
        assert not batch.is_full()
        batch.touched[f"s-{number}"] = cast(Any, SimpleNamespace(document_bytes=FULL_BYTES // 3 + 1))
    assert batch.is_full()


@pytest.mark.parametrize(
    "entry", [conflict(0), HopEntry("s" * 64, uuid4(), "a" * 64, 1, "", "", [], [], "a" * 64, b"")]
)
def test_an_entry_is_about_as_large_as_it_is_said(entry: Any) -> None:
    assert len(encode(cast(Any, entry))) <= size_of(entry) + 100


async def test_inputs_beyond_a_full_batch_come_into_the_next(
    running: Any, packet: Build, idea: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FULL_BYTES", 1)
    sent = [packet("red-1", idea, ("sentinel",), parent=running.opening) for _ in range(20)]
    for one in sent:
        await running.publish(one)
    await running.quiet()
    rows = await running.pool.fetch(BATCHES)
    assert [row["packet_id"] for row in rows] == [one.packet_id for one in sent], "in order, and all of them"
    assert len({row["batch_no"] for row in rows}) == len(sent), "each in a batch of its own"


def test_memory_is_given_back_after_a_flood() -> None:
    returned = MemoryReturn()
    returned.note(FLOOD_BYTES - 1)
    assert not returned.after_flood()
    returned.note(1)
    held = [os.urandom(100_000) for _ in range(2000)]
    full = psutil.Process().memory_info().rss
    del held
    assert returned.after_flood() and not returned.after_flood()
    assert psutil.Process().memory_info().rss < full - 100_000_000
