"""One session of many packets, written by the persister's own transaction, without a broker."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from uuid import UUID, uuid4

import asyncpg
import msgspec
from msgspec.structs import replace
from tests.support.log import packet_entry

from apc_contracts.session.document import SessionDocument
from apc_contracts.vocabulary import RunPhase
from apc_log.batch import PacketEntry, SessionUpdate
from benchmarks.database.log_load import PACKETS_A_TRANSACTION, Loader, open_loader

RUN = "run-large"
SESSION = "session-large"
SWARMS = {f"swarm-{number}": [f"agent-{number}-{place}" for place in range(4)] for number in range(4)}
AGENTS = [(agent, swarm) for swarm, agents in SWARMS.items() for agent in agents]
CHILDREN = 3
GENERATION = 2_000
"""Packets of a generation."""
_TYPES = ("IDEA", "EVAL", "TRANSFER", "STATE")


async def load_run(pool: asyncpg.Pool, packets: int, a_transaction: int = PACKETS_A_TRANSACTION) -> Loader:
    """Write one session of so many packets into an empty, migrated database; the loader writes more, close it."""
    loader = await open_loader(pool, _packets(), _session)
    await loader.load(packets, a_transaction)
    return loader


def _packets() -> Iterator[PacketEntry]:
    """Yield packets of 16 agents without end, in a tree in which each causes three others; START is the first."""
    last: list[PacketEntry] = []
    yield (start := _start())
    last.append(start)
    number = 1
    while True:
        agent, swarm = AGENTS[number * 7 % len(AGENTS)]
        kind = _TYPES[number % 4]
        entry = packet_entry(
            UUID(int=uuid4().int),
            session_id=SESSION,
            run_id=RUN,
            packet_type=kind,
            run_phase="REFINEMENT",
            parent=last[(number - 1) // CHILDREN % len(last)],
            payload={"metric_set": {"outcome": number % 97 / 97, "drift_risk": number % 89 / 178}},
            recipients=(AGENTS[(number * 5 + 3) % len(AGENTS)][0],),
            size_bytes=200,
        )
        held = {"verdict": "held"} if kind == "TRANSFER" else {}
        entry = replace(
            entry, sender_agent_id=agent, sender_swarm_id=swarm, generation=number // GENERATION, round=1, **held
        )
        last.append(entry)
        del last[:-3_000]
        number += 1
        yield entry


def _start() -> PacketEntry:
    swarms = [{"swarm_id": swarm, "agents": agents} for swarm, agents in SWARMS.items()]
    session = {"swarms": swarms, "budgets": {"packets": 1_000_000}}
    entry = packet_entry(session_id=SESSION, run_id=RUN, packet_type="SIGNAL", payload={"signal": "START"})
    body = json.dumps({"packet_type": "SIGNAL", "payload": {"signal": "START", "session": session}}).encode()
    return replace(entry, sender_agent_id="librarian", body=body, packet_hash=sha256(body).digest())


def _session(packet: PacketEntry, step: int) -> SessionUpdate:
    now = datetime.now(UTC)
    document = SessionDocument(
        session_id=SESSION,
        run_id=RUN,
        task_id=packet.task_id,
        opener="librarian",
        contract_hash="00" * 32,
        start_packet_id=packet.root_packet_id,
        opened_at=now,
        swarms=SWARMS,
        members=[agent for agent, _ in AGENTS],
        task_ids=[packet.task_id],
        generation_limit=100,
        generation_deadline_ms=60_000,
        state_deadline_ms=60_000,
        max_rounds=1,
        veto_window_ms=1_000,
        budgets={"packets": 1_000_000},
        state="CONTINUE_ACCUMULATION",
        run_phase=RunPhase.REFINEMENT,
        generation=packet.generation,
        step=step,
        deadlines={"generation": now + timedelta(minutes=1)},
        spent={"packets": float(step)},
    )
    return SessionUpdate(SESSION, RUN, document.state, False, 0, 1, step, 1, msgspec.json.encode(document))
