"""The references that the database derives from the bytes are those that the contract reads from the packet."""

import json
from hashlib import sha256
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from tests.support.log import LogBench, packet_entry, session_row

from apc_contracts import parse_packet
from apc_contracts.packet import defines, refers_to
from apc_log.batch import PacketEntry

COLUMNS = "SELECT packet_id, refers_to, defines FROM apc_log.agent_packets"


def evidence(random: Random) -> str:
    """Return a reference in one of its forms, or text that is nearly one."""
    packet_id, digest = str(UUID(int=random.getrandbits(128))), f"{random.getrandbits(256):064x}"
    return random.choice(
        (
            f"packet:{packet_id}",
            f"packet:{packet_id.upper()}",
            packet_id,
            f"sha256:{digest}",
            f"sha256:{digest.upper()}",
            f"SHA256:{digest}",
            f"sha256:{digest}0",
            f"Packet:{packet_id}",
            f" {packet_id}",
            f"{packet_id}\n",
            packet_id.replace("-", ""),
            "log://1",
            "",
            'évidence_refs "\\u0041',
        )
    )


def document(random: Random, packet_type: str) -> dict[str, Any]:
    """Return a packet of a type that refers to others or defines names."""
    packet_id, digest = str(UUID(int=random.getrandbits(128), version=4)), f"{random.getrandbits(256):064x}"
    claim = {"hypothesis_id": "h", "text": "t", "confidence_pre": 0, "confidence_post": 1}
    rows = [
        {
            "candidate_id": name,
            "packet_ref_ids": [str(UUID(int=random.getrandbits(128))) for _ in range(random.randint(0, 3))],
            "score_components": {},
            "total_score": 0.5,
        }
        for name in "ab"
    ]
    claims = [{"type": "Claim", "id": random.choice("xyz"), **claim} for _ in range(random.randint(0, 3))]
    header = {"task_id": "t", "run_id": "r", "swarm_id": "s", "dialect_id": "d", "dialect_hash": "h"}
    constraint = {"type": "Constraint", "id": "c", "constraint_kind": "QUALITY", "expression": "best"}
    payloads: dict[str, dict[str, Any]] = {
        "CLAIM": {"claim_id": random.choice(("c-1", 'ü "quoted"')), **claim},
        "ARTIFACT": {
            "artifact_id": "a",
            "artifact_kind": "DATASET_SLICE",
            "artifact_uri": "file:///a",
            "artifact_hash": f"sha256:{digest}",
        },
        "ARBITRATION": {"arbitration_id": "a", "candidates": rows, "winner_candidate_id": "a", "scoring": {}},
        "TASK_IR": {"ir_header": header, "objects": [*claims, constraint]},
        "ACK": {"acked_packet_id": packet_id, "ack_status": "ACCEPTED"},
    }
    found = {
        "protocol_version": "apc/1.0",
        "packet_id": packet_id,
        "packet_type": packet_type,
        "channel": "INTER_AGENT",
        "run_phase": "DISCOVERY",
        "created_at": "2026-02-19T07:50:00Z",
        "sender": {"agent_id": "a", "role": "r", "swarm_id": "s"},
        "recipients": [{"agent_id": "b"}],
        "trace": {
            "session_id": "session-1",
            "run_id": "run-1",
            "task_id": "task-1",
            "root_packet_id": packet_id,
            "generation": 0,
            "step": 0,
        },
        "routing": {"delivery_mode": "DIRECT", "priority": 4, "ttl_ms": 1000, "requires_ack": False},
        "confidence": 0.5,
        "symbolic_keys": [],
        "payload": payloads[packet_type],
    }
    if random.random() < 0.7:
        found["proof_bundle"] = {"evidence_refs": [evidence(random) for _ in range(random.randint(0, 5))]}
    return found


def spelled(random: Random, found: dict[str, Any]) -> bytes:
    """Return the same packet in one of the ways in which JSON can be written."""
    body = json.dumps(found, ensure_ascii=random.random() < 0.5).encode()
    return body.replace(b'"evidence_refs"', random.choice((b'"evidence_refs"', b'"\\u0065vidence_refs"')))


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_database_reads_what_the_contract_reads(bench: LogBench, seed: int) -> None:
    random = Random(seed)
    types = ("CLAIM", "ARTIFACT", "ARBITRATION", "TASK_IR", "ACK")
    bodies = [spelled(random, document(random, random.choice(types))) for _ in range(150)]
    expected = {}
    entries: list[PacketEntry] = []
    for body in bodies:
        packet = parse_packet(body)
        expected[packet.packet_id] = set(refers_to(packet)), set(defines(packet))
        plain = packet_entry(packet.packet_id, packet_type=packet.packet_type.value)
        entries.append(msgspec.structs.replace(plain, body=body, packet_hash=sha256(body).digest()))
    await bench.gate.open()
    await bench.gate.log(entries, [session_row()])
    await bench.write()
    rows = await bench.pool.fetch(COLUMNS)
    assert {row["packet_id"]: (set(row["refers_to"] or ()), set(row["defines"] or ())) for row in rows} == expected


async def test_bytes_that_are_no_json_have_no_references(pool: asyncpg.Pool) -> None:
    for body in (b"\xff\x00", b"{", b"[1", b"", b'{"payload": 3, "proof_bundle": [{}]}'):
        for name in ("references_in", "definitions_in"):
            assert await pool.fetchval(f"SELECT apc_log.{name}('ARTIFACT', $1)", body) is None
