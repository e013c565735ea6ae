"""What strangers send does not stay in the gate's memory, and fits into what the broker takes."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, Packet
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.vocabulary import PRESENCE_SESSION, PacketType, RunPhase
from apc_log.batch import ConflictEntry, HopEntry, encode
from apc_orchestrator import batch as batches
from apc_orchestrator.batch import FULL_BYTES, Batch, size_of
from apc_orchestrator.judging import memory
from apc_orchestrator.judging.memory import Sessions

Build = Callable[..., Packet]
LARGEST_MESSAGE = 2 << 20
"""What the broker takes by our configuration (`max_message_size`)."""
BATCHES = "SELECT packet_id, batch_no FROM apc_log.agent_packets WHERE packet_type = 'IDEA' ORDER BY seq"


def conflict(size: int) -> ConflictEntry:
    return ConflictEntry(None, uuid4(), "unreadable", "MALFORMED", "no JSON", b"x" * size, None, None, "agent.red-1")


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_batch_is_full_before_its_message_is_too_large(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    if not is_guarded:
        monkeypatch.setattr(batches, "FULL_BYTES", 1 << 40)
    batch, inputs = Batch(1, datetime.now(UTC)), 0
    while not batch.is_full() and inputs < 1000:
        batch.entries.append(conflict(10_000))
        inputs += 1
    size = len(encode(batch.seal(0, 1)))
    assert 0.9 * FULL_BYTES < size < 1.1 * FULL_BYTES if is_guarded else size > LARGEST_MESSAGE


@pytest.mark.parametrize("is_guarded", [False, True])
def test_the_documents_of_sessions_count(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    if not is_guarded:
        monkeypatch.setattr(batches, "FULL_BYTES", 1 << 40)
    batch = Batch(1, datetime.now(UTC))
    for number in range(3):
        assert not batch.is_full()
        batch.touched[f"s-{number}"] = cast(Any, SimpleNamespace(document_bytes=FULL_BYTES // 3 + 1))
    assert batch.is_full() is is_guarded


@pytest.mark.parametrize(
    "entry", [conflict(0), HopEntry("s" * 64, uuid4(), "a" * 64, 1, "", "", [], [], "a" * 64, b"")]
)
def test_an_entry_is_about_as_large_as_it_is_said(entry: Any) -> None:
    assert len(encode(cast(Any, entry))) <= size_of(entry) + 100


async def test_inputs_beyond_a_full_batch_come_into_the_next(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FULL_BYTES", 1)
    sent = [packet("red-1", idea, ("sentinel",), parent=running.opening) for _ in range(20)]
    for one in sent:
        await running.publish(one)
    await running.quiet()
    rows = await running.pool.fetch(BATCHES)
    assert [row["packet_id"] for row in rows] == [one.packet_id for one in sent], "in order, and all of them"
    assert len({row["batch_no"] for row in rows}) == len(sent), "each in its own batch"


def refused(*recipients: str) -> Identity:
    """Return what is remembered of a packet for a session that does not exist."""
    return Identity(
        packet_hash=b"h" * 32,
        payload_hash=b"h" * 32,
        packet_type=PacketType.IDEA,
        sender="red-1",
        swarm_id="red",
        recipients=recipients,
        addressed=recipients,
        cause=None,
        root=uuid4(),
        verdict=VerdictKind.REFUSED,
        refusal=Refusal("UNKNOWN_SESSION", "session_is_here", "trace.session_id", "there is no session"),
        run_phase=RunPhase.RESEARCH,
        round=0,
        generation=0,
        step=0,
    )


@pytest.mark.parametrize(("bound", "most"), [(1 << 20, 1 << 20), (1 << 40, 1 << 40)])
def test_sessions_that_do_not_exist_have_one_bound_in_bytes(
    monkeypatch: pytest.MonkeyPatch, bound: int, most: int
) -> None:
    """Each packet names as many recipients as fit into it; without the bound all of it stays."""
    monkeypatch.setattr(memory, "UNKNOWN_SESSION_BYTES", bound)
    known, recipients = Sessions(), tuple(f"{number:064d}" for number in range(1000))
    for number in range(50):
        known.note_absence(f"s-{number}", {})
        for _ in range(3):
            known.remember_without_session(f"s-{number}", uuid4(), refused(*recipients))
    assert known.unknown_session_bytes <= most
    assert (known.unknown_session_bytes > 1 << 24) is (bound == 1 << 40)
    assert known.is_known("s-49") and known.refused_packets("s-49"), "the last one heard is known"


@pytest.mark.parametrize("is_guarded", [False, True])
def test_one_name_alone_stays_known_within_the_bound(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    monkeypatch.setattr(memory, "UNKNOWN_SESSION_BYTES", 1 << (20 if is_guarded else 40))
    known, recipients, last = Sessions(), tuple(f"{number:064d}" for number in range(1000)), uuid4()
    for packet_id in [*(uuid4() for _ in range(50)), last]:
        known.remember_without_session("s", packet_id, refused(*recipients))
    assert (known.unknown_session_bytes <= 1 << 20) is is_guarded
    assert known.is_known("s") and known.packet_without_session("s", last) is not None


@pytest.mark.parametrize(
    ("bound", "value", "recipients", "kept"), [("PRESENCE_BYTES", 1 << 20, 1000, 8), ("PRESENCE_KEPT", 7, 1, 7)]
)
@pytest.mark.parametrize("is_guarded", [False, True])
def test_the_presence_session_is_bounded_in_number_and_in_bytes(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int, recipients: int, kept: int, is_guarded: bool
) -> None:
    monkeypatch.setattr(memory, bound, value if is_guarded else 1 << 40)
    known, sent = Sessions(), [uuid4() for _ in range(50)]
    identity = refused(*(f"{number:064d}" for number in range(recipients)))
    for packet_id in sent:
        known.remember_without_session(PRESENCE_SESSION, packet_id, identity)
    found = [one for one in sent if known.packet_without_session(PRESENCE_SESSION, one) is not None]
    assert found == (sent[-kept:] if is_guarded else sent), "the oldest are forgotten first"
    assert bound == "PRESENCE_KEPT" or (known.presence.size_bytes <= value) is is_guarded
    assert known.is_known(PRESENCE_SESSION) and known.unknown_session_bytes == 0, "it is no unknown name"


@pytest.mark.parametrize("is_guarded", [False, True])
def test_names_alone_are_bounded_and_forgotten_names_cost_nothing(
    monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    kept = 10 if is_guarded else 100
    monkeypatch.setattr(memory, "UNKNOWN_SESSIONS_KEPT", kept)
    known = Sessions()
    for number in range(100):
        known.note_absence(f"s-{number}", {uuid4(): refused("sentinel")})
    assert [known.is_known(f"s-{number}") for number in (0, 89, 90, 99)] == [*[not is_guarded] * 2, True, True]
    one = known.unknown_session_bytes // kept
    known.note_absence("s-99", {uuid4(): refused("sentinel")})
    assert known.unknown_session_bytes == kept * one, "what is noted twice counts once"


@pytest.mark.parametrize("is_guarded", [False, True])
def test_memory_is_given_back_after_a_flood(is_guarded: bool) -> None:
    """In its own process: what other tests have left would be given back with it, or in its place."""
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, *(["guarded"] if is_guarded else [])], capture_output=True, text=True, check=True
    )
    assert (int(done.stdout) > 100_000_000) is is_guarded


FLOOD = """
import os, sys
import psutil
from apc_orchestrator.shard.intake import FLOOD_BYTES, MemoryReturn

returned = MemoryReturn()
if len(sys.argv) == 1:
    returned._trim = None
returned.note(FLOOD_BYTES - 1)
assert not returned.after_flood()
returned.note(1)
flood = [(os.urandom(100_000), os.urandom(1000)) for _ in range(2000)]
staying = [small for _, small in flood]  # a little between what goes keeps the allocator from giving it back by itself
full = psutil.Process().memory_info().rss
del flood
assert returned.after_flood() and not returned.after_flood()
print(full - psutil.Process().memory_info().rss)
assert len(staying) == 2000
"""
