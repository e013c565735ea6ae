"""What a packet costs with one, two, four and eight shards: CPU, not rates, because all shards share one machine."""

import itertools
from contextlib import AsyncExitStack

from apc_contracts.identity.ids import shard_of
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.metering import Meter
from benchmarks.support.servers import Servers
from benchmarks.support.system import Load, System, start_system, until_applied

COUNTS = (1, 2, 4, 8)
ROUNDS = 3
WARM_UP = 100 * max(COUNTS)
BAR = 1.05
CPU = "CPU s per 1,000 packets"
WAL = "kB of WAL a packet"
WRITTEN = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
"""Bytes of write-ahead log since the database server was made."""


async def measure_shards(servers: Servers, figures: Figures, count: int) -> None:
    """Send `count` packets through each number of shards, to one shard after another, so that batches stay full.

    The numbers take turns, and the cheapest of the rounds counts: what disturbs the machine only adds.
    """
    runs: dict[int, list[dict[str, float]]] = {shards: [] for shards in COUNTS}
    for _ in range(ROUNDS):
        for shards in COUNTS:
            async with start_system(servers, shards) as system:
                runs[shards].append(await _run(servers, system, count))
    first = min(map(_total, runs[COUNTS[0]]))
    for shards, found in runs.items():
        best = min(found, key=_total)
        note = ", ".join(f"{name} {value:.3f}" for name, value in best.items())
        figures.add(Figure(f"shards_{shards}_cpu", _total(best), CPU, first, BAR, is_time=True, note=note))


def _total(run: dict[str, float]) -> float:
    return sum(value for name, value in run.items() if name != WAL)


async def _run(servers: Servers, system: System, count: int) -> dict[str, float]:
    """Return the CPU seconds of 1,000 packets by process, and the kB of WAL of one, after a warm-up of every shard."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(system.worker("source"))
        sink = await stack.enter_async_context(system.worker("sink"))
        sessions = [_session_of(shard, system.shards) for shard in range(system.shards)]
        for session_id in sessions:
            await system.open_session(session_id, [agents.source, agents.sink])
        await _send(system, sessions, WARM_UP, before=0)
        services = {**system.services, "worker": sink}
        written: int = await system.pool.fetchval(WRITTEN)
        meter = await Meter.start(servers, {name: one.process.pid for name, one in services.items()})
        sent = count // system.shards * system.shards
        await _send(system, sessions, sent, before=WARM_UP)
        cpu = await meter.read(sent)
        return {**cpu, WAL: (await system.pool.fetchval(WRITTEN) - written) / sent / 1000}


async def _send(system: System, sessions: list[str], count: int, before: int) -> None:
    """Send `count` packets in equal parts, one session after the other; `before` is what was sent already."""
    part = count // len(sessions)
    for session_id in sessions:
        load = packets.publications(session_id, agents.source.actor, [agents.sink.agent_id], system.bus.user, part)
        await Load(system.bus, system.pool, [session_id], sent=before // len(sessions)).send(load)
        await until_applied(system.pool, [session_id], before // len(sessions) + part)


def _session_of(shard: int, shards: int) -> str:
    """Return the name of a session that belongs to this shard."""
    return next(name for number in itertools.count() if shard_of(name := f"shards-{shard}-{number}", shards) == shard)
