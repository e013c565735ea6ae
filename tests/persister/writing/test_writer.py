"""The writer on a real Postgres: numbers, fencing, duplicates, conflicts, entries that cannot be stored."""

import json
from datetime import UTC, datetime

import asyncpg
import msgspec
import pytest
from tests.support.log import (
    LogBench,
    coordination,
    hop,
    lifecycle,
    packet_entry,
    session_row,
)

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import LOG
from apc_log.batch import (
    LOG_BATCH_TYPE,
    ConflictEntry,
    Entry,
    EpochOpen,
    HopEntry,
    LineageEntry,
    LogBatch,
    PacketEntry,
    encode,
)


def lineage(packet: PacketEntry) -> LineageEntry:
    return LineageEntry(
        session_id=packet.session_id,
        packet_id=packet.packet_id,
        protocol_id="protocol-1",
        parent_protocol_ids=["protocol-0"],
        ancestor_swarms=[],
        cross_use_case=False,
        transfer_mode="WINNER_TO_LOSERS",
        from_swarm="swarm-1",
        to_swarm="swarm-2",
        sender_score=0.9,
        receiver_score=0.5,
    )


def conflict(**changes: object) -> ConflictEntry:
    fields: dict[str, object] = {
        "session_id": None,
        "packet_id": None,
        "kind": "quarantine",
        "code": "MALFORMED",
        "reason": "no JSON",
        "raw": b"\xff\x00",
        "first_hash": None,
        "second_hash": None,
        "user_id": "agent.x",
    }
    return ConflictEntry(**{**fields, **changes})  # type: ignore[arg-type]  # test data by name


async def conflicts(bench: LogBench) -> list[asyncpg.Record]:
    rows: list[asyncpg.Record] = await bench.pool.fetch("SELECT * FROM apc_log.packet_conflicts ORDER BY seq")
    return rows


async def head(bench: LogBench) -> tuple[int, int, int]:
    row = await bench.pool.fetchrow("SELECT epoch, batch_no, next_seq FROM apc_log.shards WHERE shard = 0")
    assert row is not None
    return tuple(row)


async def test_every_kind_of_entry_is_stored_in_order(bench: LogBench) -> None:
    await bench.gate.open()
    packet = packet_entry(packet_type="TRANSFER")
    refused = packet_entry(refusal_code="PHASE_FORBIDS_TYPE", parent=packet)
    moved = coordination(packet, 1, "research_briefs_dispatched", "SESSION_OPEN", "DIFFERENTIATED_RESEARCH")
    entries: list[Entry] = [packet, lineage(packet), *lifecycle(packet), refused, moved, conflict()]
    await bench.gate.log(entries, [session_row(step=1, state="DIFFERENTIATED_RESEARCH")])
    await bench.write()

    assert await bench.numbers() == list(range(1, len(entries) + 1))
    assert await head(bench) == (1, 1, len(entries) + 1)
    stored = await bench.pool.fetch("SELECT * FROM apc_log.agent_packets ORDER BY seq")
    assert [row["packet_id"] for row in stored] == [packet.packet_id, refused.packet_id]
    assert [row["seq"] for row in stored] == [1, 6]
    assert stored[0]["body_stored"] == packet.body
    assert stored[0]["packet_hash"] == stored[0]["stored_hash"] == packet.packet_hash
    assert stored[0]["recipients"] == ["receiver-1"]
    assert json.loads(stored[0]["facts"]) == {"outstanding": 3}
    assert (stored[1]["refusal_code"], stored[1]["verdict"]) == ("PHASE_FORBIDS_TYPE", "refused")
    assert stored[1]["parent_packet_id"] == packet.packet_id
    ids = await bench.pool.fetch("SELECT packet_id, seq, payload_hash FROM apc_log.packet_ids ORDER BY seq")
    assert [tuple(row) for row in ids] == [
        (packet.packet_id, 1, packet.payload_hash),
        (refused.packet_id, 6, refused.payload_hash),
    ]
    session = await bench.pool.fetchrow("SELECT * FROM apc_log.sessions")
    assert session is not None
    assert (session["state"], session["epoch"], session["batch_no"]) == ("DIFFERENTIATED_RESEARCH", 1, 1)


async def test_the_last_state_of_a_session_stands(bench: LogBench) -> None:
    await bench.gate.open()
    for step in range(1, 6):
        await bench.gate.log([], [session_row(step=step, document=b'{"step": %d}' % step)])
    await bench.write()
    row = await bench.pool.fetchrow("SELECT step, batch_no, document->>'step' AS own FROM apc_log.sessions")
    assert row is not None
    assert tuple(row) == (5, 5, "5")
    assert await bench.numbers() == []


async def test_a_batch_that_comes_again_is_not_written_again(bench: LogBench) -> None:
    await bench.gate.open()
    packet = packet_entry()
    batch = await bench.gate.log([packet, *lifecycle(packet)])
    await bench.gate.publish(encode(batch), LOG_BATCH_TYPE)
    await bench.gate.log([packet_entry()])
    await bench.gate.publish(encode(batch), LOG_BATCH_TYPE)
    persister = await bench.write()
    assert persister.writers[0].counts.duplicates == 2
    assert await bench.numbers() == [1, 2, 3, 4, 5]
    assert await bench.count("packet_conflicts") == 0


@pytest.mark.parametrize("in_one_batch", [True, False])
async def test_a_known_id_becomes_a_conflict(bench: LogBench, in_one_batch: bool) -> None:
    await bench.gate.open()
    first = packet_entry()
    again = packet_entry(first.packet_id)
    other = packet_entry(first.packet_id, text="other content")
    elsewhere = packet_entry(first.packet_id, session_id="session-2")
    await bench.gate.log([first] if not in_one_batch else [first, again, other, elsewhere])
    if not in_one_batch:
        await bench.write()
        await bench.gate.log([again, other, elsewhere])
    await bench.write()
    assert await bench.count("agent_packets") == 2
    assert await bench.count("packet_ids") == 2
    rows = await conflicts(bench)
    assert [(row["kind"], row["seq"]) for row in rows] == [("duplicate_id", 2), ("duplicate_id", 3)]
    assert "the same content" in rows[0]["reason"] and "other content" in rows[1]["reason"]
    assert rows[1]["raw"] == other.body
    assert (rows[1]["first_hash"], rows[1]["second_hash"]) == (first.packet_hash, other.packet_hash)
    assert await bench.numbers() == [1, 2, 3, 4]


async def test_events_that_come_again_are_set_aside(bench: LogBench) -> None:
    await bench.gate.open()
    packet = packet_entry()
    moved = coordination(packet, 1, "research_briefs_dispatched", "SESSION_OPEN", "DIFFERENTIATED_RESEARCH")
    hops = lifecycle(packet)
    await bench.gate.log([packet, lineage(packet), moved, *hops])
    await bench.write()
    new = hop(packet, ["retraction_packet_received"], "ARCHIVED", "RETRACTED")
    await bench.gate.log([hops[1], new, moved, lineage(packet)])
    persister = await bench.write()
    assert persister.writers[0].counts.unstored == 3
    rows = await conflicts(bench)
    assert [(row["kind"], row["seq"]) for row in rows] == [("duplicate_event", n) for n in (7, 9, 10)]
    assert msgspec.msgpack.decode(rows[0]["raw"], type=HopEntry) == hops[1]
    assert await bench.numbers() == list(range(1, 11))
    assert await bench.count("packet_events") == 4


async def test_what_cannot_be_stored_does_not_hold_up_the_rest(bench: LogBench) -> None:
    await bench.gate.open()
    good = [packet_entry() for _ in range(40)]
    bad: dict[int, Entry] = {
        3: msgspec.structs.replace(packet_entry(), task_id="nul\0"),
        11: msgspec.structs.replace(packet_entry(), facts=b'{"a": "\\u0000"}'),
        12: msgspec.structs.replace(packet_entry(), facts=b"no JSON"),
        20: msgspec.structs.replace(packet_entry(), packet_hash=b"x" * 32),
        21: msgspec.structs.replace(packet_entry(), round=2**40),
        22: msgspec.structs.replace(packet_entry(), refusal=b"[]"),
        30: msgspec.structs.replace(packet_entry(), verdict="maybe"),
        33: conflict(reason="nul\0", session_id="\0"),
        39: hop(good[0], [], "DRAFT", "ROUTED"),
    }
    entries: list[Entry] = [bad.get(at, packet) for at, packet in enumerate(good)]
    await bench.gate.log(entries, [session_row(), session_row("session-bad", document=b'{"a":"\\u0000"}')])
    await bench.gate.log([packet_entry()])
    persister = await bench.write()
    assert persister.writers[0].counts.unstored == len(bad) + 1
    rows = await conflicts(bench)
    assert {row["kind"] for row in rows} == {"unstorable"}
    assert [row["seq"] - 1 for row in rows][: len(bad)] == list(bad)
    assert msgspec.msgpack.decode(rows[0]["raw"], type=PacketEntry) == bad[3]
    assert await bench.count("agent_packets") == len(good) - len(bad) + 1
    assert await bench.count("packet_ids") == len(good) - len(bad) + 1
    assert await bench.numbers() == list(range(1, len(good) + 3))
    assert await bench.pool.fetchval("SELECT array_agg(session_id) FROM apc_log.sessions") == ["session-1"]


async def test_an_opening_gives_the_next_epoch_and_a_repeat_does_not(bench: LogBench) -> None:
    gate = bench.gate
    await gate.open()
    first = EpochOpen(1, 0, gate.holder)
    await gate.log([packet_entry()])
    await gate.publish(encode(first), "epoch_open")
    await bench.write()
    assert await head(bench) == (1, 1, 2)
    await gate.open()
    await gate.publish(encode(first), "epoch_open")
    await gate.log([packet_entry()])
    await bench.write()
    assert await head(bench) == (2, 1, 3)
    epochs = await bench.pool.fetch(
        "SELECT epoch, holder, mark_epoch, mark_batch_no FROM apc_log.shard_epochs ORDER BY epoch"
    )
    assert [tuple(row) for row in epochs] == [(1, first.holder, 0, 0), (2, gate.holder, 1, 1)]
    assert await bench.pool.fetchval("SELECT holder FROM apc_log.shards") == gate.holder


async def test_a_gate_that_lost_its_shard_is_fenced(bench: LogBench) -> None:
    old = bench.gate
    await old.open()
    done = await old.log([packet_entry()])
    lost = packet_entry()
    late = old.batch([lost, *lifecycle(lost)])
    late = msgspec.structs.replace(late, batch_no=2)
    await old.open()
    await old.publish(encode(done), LOG_BATCH_TYPE)
    await old.publish(encode(late), LOG_BATCH_TYPE)
    await old.log([packet_entry()])
    persister = await bench.write()
    counts = persister.writers[0].counts
    assert (counts.duplicates, counts.fenced) == (1, 1)
    (row,) = await conflicts(bench)
    assert (row["kind"], row["raw"], row["epoch"]) == ("fenced", encode(late), 2)
    assert await bench.count("agent_packets") == 2
    assert await bench.numbers() == [1, 2, 3]


async def test_openings_that_come_again_together_fence_nobody(bench: LogBench) -> None:
    """A persister that dies between COMMIT and ack gets both openings again, in front of the second's
    batches."""
    gate = bench.gate
    await gate.open()
    first = encode(EpochOpen(1, 0, gate.holder))
    await gate.open()
    second = encode(EpochOpen(1, 0, gate.holder))
    await bench.write()
    await gate.publish(first, "epoch_open")
    await gate.publish(second, "epoch_open")
    await gate.log([packet_entry()])
    persister = await bench.write()
    assert persister.writers[0].counts.fenced == 0
    assert await head(bench) == (2, 1, 2)


BROKEN_TEXT = encode(LogBatch(1, 0, 1, 1, datetime.now(UTC), [], [session_row("text")])).replace(b"text", b"\xff" * 4)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x91" * 3000, b'{"json": 1}', msgspec.msgpack.encode([1]), BROKEN_TEXT],
    ids=["nothing", "no MessagePack", "deep", "JSON", "another record", "no UTF-8"],
)
@pytest.mark.parametrize("message_type", [LOG_BATCH_TYPE, "epoch_open", "nonsense\0"])
async def test_a_message_nobody_can_read_is_kept(bench: LogBench, body: bytes, message_type: str) -> None:
    await bench.gate.open()
    await bench.gate.publish(body, message_type)
    await bench.gate.log([packet_entry()])
    await bench.write()
    (row,) = await conflicts(bench)
    assert (row["kind"], row["raw"]) == ("unreadable", body)
    assert await bench.numbers() == [1, 2]


async def test_a_message_whose_properties_nobody_can_read_is_kept(bench: LogBench) -> None:
    await bench.gate.open()
    unreadable = Message(b"{}", "", content_type="", headers={headers.UNREADABLE: b"\xff"})
    await bench.gate.bus.publish(Publication(LOG, "0", unreadable))
    await bench.gate.log([packet_entry()])
    await bench.write()
    (row,) = await conflicts(bench)
    assert (row["kind"], row["raw"], row["reason"]) == ("unreadable", b"{}", "its AMQP properties cannot be read")


async def test_many_small_batches_share_a_transaction(bench: LogBench) -> None:
    await bench.gate.open()
    for _ in range(50):
        await bench.gate.log([packet_entry()])
    persister = await bench.write()
    assert persister.writers[0].counts.transactions < 10
    assert await bench.numbers() == list(range(1, 51))


async def test_a_transaction_takes_no_more_than_its_entries(bench: LogBench) -> None:
    bench.settings = bench.settings.model_copy(update={"transaction_entries": 10})
    await bench.gate.open()
    for _ in range(5):
        await bench.gate.log([packet_entry() for _ in range(7)])
    persister = await bench.write()
    assert persister.writers[0].counts.transactions == 5
