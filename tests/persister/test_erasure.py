"""Encrypted bodies and their erasure: no text of a packet in any table, and after it no way back; every proof holds."""

import json
from base64 import b64encode
from dataclasses import replace as replaced
from hashlib import sha256
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.support.log import LogBench, bytes_of_tables, hop, lifecycle, packet_entry

from apc_bus.settings import PersisterSettings
from apc_log.batch import ConflictEntry, HopEntry, LineageEntry, PacketEntry
from apc_log.body_encryption import KeyRing, is_sealed, key_id_of
from apc_log.queries import PacketRow, replay_page, trace
from apc_log.queries.packets import session_effects
from apc_persister.encryption import erase_subject
from apc_persister.errors import SubjectUnknown
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard

SECRET = "the tender rose of Ispahan"
MASTER = b64encode(bytes(range(32))).decode()


@pytest.fixture
def encrypting(bench: LogBench, monkeypatch: pytest.MonkeyPatch) -> LogBench:
    """A persister that encrypts by the metadata field `customer`, else by sender."""
    monkeypatch.setenv("APC_ENCRYPT_BODIES", "true")
    monkeypatch.setenv("APC_SUBJECT_MASTER_KEY", MASTER)
    monkeypatch.setenv("APC_SUBJECT_FIELD", "customer")
    return replaced(bench, settings=PersisterSettings())


def telling(
    sender: str = "alice", metadata: dict[str, Any] | None = None, refusal_code: str | None = None
) -> PacketEntry:
    """Return a packet whose payload tells the secret, and whose refusal quotes it."""
    entry = packet_entry(refusal_code=refusal_code)
    body = json.dumps(
        {"sender": {"agent_id": sender}, "payload": {"text": SECRET}, "metadata": metadata or {}}
    ).encode()
    refusal = {"code": refusal_code, "rule": "rule", "path": f"$.payload.{SECRET}", "message": SECRET}
    return msgspec.structs.replace(
        entry,
        sender_agent_id=sender,
        body=body,
        packet_hash=sha256(body).digest(),
        payload_hash=sha256(SECRET.encode()).digest(),
        signature=f"ed25519:{SECRET[:3]}",
        refusal=json.dumps(refusal).encode() if refusal_code else None,
    )


def conflict(raw: bytes, user_id: str = "agent.alice") -> ConflictEntry:
    return ConflictEntry(None, None, "refused", "MALFORMED", SECRET, raw, None, sha256(raw).digest(), user_id)


def lineage(packet: PacketEntry) -> LineageEntry:
    return LineageEntry(
        packet.session_id, packet.packet_id, "p-1", [], [], False, "adaptation", "Ispahan", "Ispahan", 0.5, 0.5
    )


async def verify(bench: LogBench) -> int:
    """Entries of shard 0, all of which fit tree and checkpoints."""
    async with bench.pool.acquire() as connection:
        report = await verify_shard(connection, 0, load_signer(bench.settings).public_key(0))
    assert report.findings == []
    return report.entries


async def tables(bench: LogBench) -> bytes:
    async with bench.pool.acquire() as connection:
        return await bytes_of_tables(connection)


async def log_rows(bench: LogBench) -> list[str]:
    """Return every row of every append-only table, but the log of the log itself."""
    names = await bench.pool.fetch(
        "SELECT name::text FROM apc_guard.log_tables WHERE is_append_only AND name <> 'apc_log.log_events'::regclass"
    )
    return sorted([row[0] for (name,) in names for row in await bench.pool.fetch(f"SELECT t::text FROM {name} AS t")])


def ways_to_write(text: str) -> list[bytes]:
    raw = text.encode()
    return [raw, raw.hex().encode(), sha256(raw).digest(), b64encode(raw)[: len(raw)]]


async def test_no_table_holds_a_packets_text(encrypting: LogBench) -> None:
    packet, refused = telling(), telling(refusal_code="TYPE")
    quoted = msgspec.structs.replace(
        hop(packet, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "bob", 1),
        metadata=json.dumps({"ended": "dead_lettered", "error": SECRET, "usage": {"tokens": 3}}).encode(),
    )
    words = {"code": "RULE_FAILED", "rule": "calm", "requires": "content.a == 1", "remedy": "Set a to 1."}
    quoting = words | {"message": SECRET, "values": {"content.a": SECRET}}
    ruled = msgspec.structs.replace(telling(refusal_code="RULE_FAILED"), refusal=json.dumps(quoting).encode())
    other = msgspec.structs.replace(telling(), packet_id=packet.packet_id)
    await encrypting.gate.open()
    await encrypting.gate.log([packet, *lifecycle(packet), quoted, lineage(packet), refused, ruled, other])
    await encrypting.gate.log([conflict(f"no JSON: {SECRET}".encode()), conflict(packet.body)])
    # A batch of a gate that has lost its shard: its bytes are kept whole.
    fenced = telling()
    await encrypting.gate.open()
    await encrypting.gate.log([telling(metadata={"customer": "c-1"})])
    encrypting.gate.epoch -= 1
    encrypting.gate.batch_no = 7
    await encrypting.gate.log([fenced])
    await encrypting.write()

    found = await tables(encrypting)
    for written in ways_to_write(SECRET):
        assert written not in found, written
    for entry in (packet, refused, fenced):
        assert entry.packet_hash not in found, "a hash would confirm a guess"
    assert b"Ispahan" not in found
    row = await encrypting.pool.fetchrow("SELECT * FROM apc_log.agent_packets WHERE packet_id = $1", refused.packet_id)
    assert row is not None
    assert is_sealed(row["body_stored"]) and row["signature"] is None and row["refusal_code"] == "TYPE"
    by_rule = "SELECT refusal FROM apc_log.agent_packets WHERE packet_id = $1"
    assert json.loads(await encrypting.pool.fetchval(by_rule, ruled.packet_id)) == words | {
        "message": "(encrypted)",
        "values": {"content.a": "(encrypted)"},
    }, "expression and remedy are the contract's"
    assert await encrypting.pool.fetchval("SELECT count(*) FROM apc_log.packets WHERE packet IS NOT NULL") == 0
    event = await encrypting.pool.fetchval("SELECT metadata FROM apc_log.packet_events WHERE recipient = 'bob'")
    assert json.loads(event) == {"ended": "dead_lettered", "error": "(encrypted)", "usage": {"tokens": 3}}
    kinds = await encrypting.pool.fetch("SELECT kind FROM apc_log.packet_conflicts ORDER BY seq")
    assert [row[0] for row in kinds] == ["duplicate_id", "refused", "refused", "fenced"]
    assert await verify(encrypting) == len(await encrypting.numbers())


async def test_effects_keep_the_names_by_which_gate_and_workers_know_them(encrypting: LogBench) -> None:
    """Else two payments are one to who reads the log, and a gate that loads the session finds neither."""
    packet = telling()

    def claimed(number: int, key: str) -> HopEntry:
        effect = {"key": key, "claim": str(UUID(int=number)), "entry": "claimed", "attempt": 1, "note": SECRET}
        metadata = json.dumps({"effect": effect}).encode()
        return hop(packet, ["effect_claimed"], "", "", "alice", -number, metadata)

    await encrypting.gate.open()
    await encrypting.gate.log([packet, claimed(1, "pay the first"), claimed(2, "pay the second")])
    await encrypting.write()
    effects = await session_effects(encrypting.pool, packet.session_id)
    assert [effect.key for effect in effects] == ["pay the first", "pay the second"]
    assert {row.note for effect in effects for row in effect.entries} == {"(encrypted)"}


async def test_an_erased_subject_is_gone_and_the_others_are_not(encrypting: LogBench) -> None:
    alices, bobs, customers = telling("alice"), telling("bob"), telling("alice", {"customer": "c-1"})
    await encrypting.gate.open()
    await encrypting.gate.log([alices, bobs, customers, conflict(b"?" + SECRET.encode())])
    await encrypting.write()
    stored = {
        row["packet_id"]: row["body_stored"]
        for row in await encrypting.pool.fetch("SELECT packet_id, body_stored FROM apc_log.agent_packets")
    }
    wrapped_keys = await encrypting.pool.fetch("SELECT subject, wrapped FROM apc_keys.subject_keys")
    wrapped = {row["subject"]: row["wrapped"] for row in wrapped_keys}
    assert set(wrapped) == {"alice", "bob", "c-1", ""}
    before, entries = await log_rows(encrypting), await verify(encrypting)

    async with encrypting.pool.acquire() as connection:
        done = await erase_subject(connection, "alice")
        ring = KeyRing.of(encrypting.settings)
        assert ring is not None
        keys = await ring.by_id(connection, map(key_id_of, stored.values()))
        with pytest.raises(SubjectUnknown, match="alice"):
            await erase_subject(connection, "alice")

    assert done.is_swept and key_id_of(stored[alices.packet_id]) in done.key_ids
    assert key_id_of(stored[alices.packet_id]) not in keys
    for kept in (bobs, customers):
        sealed = stored[kept.packet_id]
        assert keys[key_id_of(sealed)].unseal_packet(sealed).body == kept.body
    # Neither the table nor its file has the key any more, not even wrapped.
    file = await encrypting.pool.fetchval("SELECT pg_read_binary_file(pg_relation_filepath('apc_keys.subject_keys'))")
    assert wrapped["alice"] not in await tables(encrypting) and wrapped["alice"] not in file
    assert wrapped[""] not in file and wrapped["bob"] in file
    # No row of the log was touched; the erasure is an entry itself, and names nobody.
    assert await log_rows(encrypting) == before
    event = await encrypting.pool.fetchrow("SELECT kind, detail FROM apc_log.log_events")
    assert event is not None and event["kind"] == "erasure" and "alice" not in event["detail"]

    # The log goes on behind it, with a new key.
    later = telling("alice")
    await encrypting.gate.log([later])
    await encrypting.write()
    assert await verify(encrypting) == entries + 2
    async with encrypting.pool.acquire() as connection:
        sealed = await connection.fetchval(
            "SELECT body_stored FROM apc_log.agent_packets WHERE packet_id = $1", later.packet_id
        )
        assert key_id_of(sealed) not in done.key_ids
        assert (await ring.by_id(connection, [key_id_of(sealed)]))[key_id_of(sealed)].unseal_packet(
            sealed
        ).body == later.body


async def test_a_body_that_does_not_fit_its_hash_is_set_aside(encrypting: LogBench) -> None:
    liar = msgspec.structs.replace(telling(), packet_hash=bytes(32))
    await encrypting.gate.open()
    await encrypting.gate.log([liar])
    await encrypting.write()
    assert await encrypting.count("agent_packets") == 0
    assert await encrypting.pool.fetchval("SELECT kind FROM apc_log.packet_conflicts") == "unstorable"
    assert SECRET.encode() not in await tables(encrypting)


async def test_the_writer_reads_keys_and_cannot_destroy_them(encrypting: LogBench) -> None:
    await encrypting.gate.open()
    await encrypting.gate.log([telling()])
    await encrypting.write()
    async with encrypting.pool.acquire() as connection:
        for role, statement in (
            ("apc_writer", "DELETE FROM apc_keys.subject_keys"),
            ("apc_writer", "UPDATE apc_keys.subject_keys SET wrapped = ''"),
            ("apc_reader", "UPDATE apc_keys.subject_keys SET wrapped = ''"),
            ("apc_agent", "SELECT * FROM apc_keys.subject_keys"),
        ):
            await connection.execute(f"SET SESSION AUTHORIZATION {role}")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
            await connection.execute("RESET SESSION AUTHORIZATION")
        await connection.execute("SET SESSION AUTHORIZATION apc_writer")
        ring = KeyRing.of(encrypting.settings)
        assert ring is not None
        async with connection.transaction():
            assert set(await ring.of_subjects(connection, ["alice", "new"])) == {"alice", "new"}
        await connection.execute("RESET SESSION AUTHORIZATION")


async def test_a_replay_reads_what_can_still_be_read(encrypting: LogBench) -> None:
    """Bodies, hashes, signatures and refusals come back until their key is destroyed; the others stay readable."""
    kept, gone = telling("bob", refusal_code="EXPIRED"), telling("alice")
    await encrypting.gate.open()
    await encrypting.gate.log([kept, gone])
    await encrypting.write()
    page = await replay_page(encrypting.pool, "run-1")
    assert [row.body for row in page.rows if isinstance(row, PacketRow)] == [kept.body, gone.body]
    async with encrypting.pool.acquire() as connection:
        await erase_subject(connection, "alice")
    first, second = [row.packet for row in (await trace(encrypting.pool, run_id="run-1")).packets]
    assert (first.body, first.packet_hash, first.signature) == (kept.body, kept.packet_hash, kept.signature)
    assert first.refusal is not None and first.refusal["message"] == SECRET
    assert is_sealed(second.body)
