"""What must hold when all is healed and drained: S1 to S8, nothing lost, no effect twice."""

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

import orjson
from tests.support.log import replay_everything
from tests.support.traffic import Sent, violated_equalities

from apc_agents.handling.state import PostgresStateStore
from apc_bus.settings import LogKeySettings
from apc_log.offline_verifier import parse_note, split_notes
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard
from benchmarks.soak.agents import HANDLED
from benchmarks.soak.cast import COLLECTOR, WORKERS
from benchmarks.soak.system import SoakedSystem

EMITTED = "SELECT packet_id FROM apc_log.agent_packets WHERE sender_agent_id = ANY($1)"
VERDICTS = "SELECT coalesce(refusal_code, verdict) AS code, count(*) FROM apc_log.agent_packets GROUP BY 1 ORDER BY 1"
STATES = """
SELECT state, count(*) FROM apc_log.packet_recipient_state WHERE recipient <> '' GROUP BY state ORDER BY state
"""
CONFLICTS = "SELECT kind, count(*) FROM apc_log.packet_conflicts GROUP BY kind ORDER BY kind"
HARMLESS = frozenset({"fenced", "rerun"})
"""What a frozen orchestrator wrote too late; what a handler that ran again would have said otherwise."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Of one agent: packet -> how often its state says that it was handled."""

    agent: str
    effects: Counter[UUID]


@dataclass(frozen=True, slots=True)
class Account:
    """The figures of a drained system; `violations` is empty when everything holds."""

    packets: int
    """Confirmed to the senders."""
    emitted: int
    """By the workers, as the log has them."""
    lost: int
    doubled: int
    effects: int
    verdicts: dict[str, int]
    states: dict[str, int]
    conflicts: dict[str, int]
    violations: list[str]


async def account_for(system: SoakedSystem) -> Account:
    """Compare what the senders were told, what the log has, and what the agents did."""
    pool, sent = system.pool, system.sent()
    emitted = {row["packet_id"] for row in await pool.fetch(EMITTED, [*WORKERS, COLLECTOR])}
    logged = {row["packet_id"] for row in await pool.fetch("SELECT packet_id FROM apc_log.agent_packets")}
    agents = [await _effects(system, agent) for agent in (*WORKERS, COLLECTOR)]
    conflicts = {row[0]: row[1] for row in await pool.fetch(CONFLICTS)}
    # What a worker was told of its emits died with it: for us their outcome is unknown.
    known = Sent(sent.confirmed, sent.unknown | emitted)
    violations = await violated_equalities(pool, known, [*agents, *system.listeners])
    violations += [f"conflicts of kind {kind}: {count}" for kind, count in conflicts.items() if kind not in HARMLESS]
    violations += [f"S8 {queue} holds {count}" for queue, count in (await system.depths()).items()]
    violations += await _evidence(system)
    return Account(
        packets=len(sent.confirmed),
        emitted=len(emitted),
        lost=len(sent.confirmed - logged),
        doubled=sum(count - 1 for one in agents for count in one.effects.values()),
        effects=sum(len(one.effects) for one in agents),
        verdicts={row[0]: row[1] for row in await pool.fetch(VERDICTS)},
        states={row[0]: row[1] for row in await pool.fetch(STATES)},
        conflicts=conflicts,
        violations=violations,
    )


async def _effects(system: SoakedSystem, agent: str) -> Effects:
    store = PostgresStateStore(system.pool)
    counted: Counter[UUID] = Counter()
    for opening in system.sessions:
        loaded = await store.load(agent, opening.trace.session_id)
        if loaded is not None:
            counted.update(UUID(one) for one in orjson.loads(loaded[0])["state"].get(HANDLED, ()))
    return Effects(agent, counted)


async def _evidence(system: SoakedSystem) -> list[str]:
    """S7: the tree fits the rows and every exported checkpoint, and the log played again comes out the same."""
    key = load_signer(LogKeySettings()).public_key(0)
    exported = split_notes((system.folder / "checkpoints/shard-0.checkpoints").read_text())
    outside = [parse_note(text).check(key) for text in exported]
    async with system.pool.acquire() as connection:
        report = await verify_shard(connection, 0, key, outside=outside)
    found = [f"S7 {finding}" for finding in report.findings]
    if not outside:
        found.append("S7 no checkpoint was exported")
    try:
        await replay_everything(system.pool)
    except AssertionError as error:
        found.append(f"S7 replay: {error}")
    return found
