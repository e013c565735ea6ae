"""What a packet costs with several shards, fed one after another or all at once, and what idle shards cost."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import monotonic

from apc_bus.port import Publication
from apc_contracts.identity.ids import shard_of
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.metering import Meter
from benchmarks.support.servers import Servers
from benchmarks.support.system import Load, System, start_system, until_applied, until_followed

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


SPREAD_COUNTS = (1, 4, 16)
SPREAD_ROUNDS = 2
SPREAD_SESSIONS = 32
"""Sessions that have packets at the same time; each shard has as many of them."""
SPREAD_WARM_UP = 10 * SPREAD_SESSIONS
SPREAD_BAR = 1.3
IDLE_SECONDS = 20.0
IDLE_LIMIT = 3.0
"""Per cent of a core that all parts together may use while nothing happens."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """One run."""

    rate: float
    """Packets per second."""
    cpu: dict[str, float]
    """CPU seconds of 1,000 packets by process."""
    idle: dict[str, float]
    """Per cent of a core by process, while nothing happens."""


async def measure_spread(servers: Servers, figures: Figures, count: int) -> None:
    """Send `count` packets round robin to sessions of all shards, for each number of shards; then nothing for a while.

    Batches are small then: what arrives at once is divided among the shards. The numbers take turns, and the best of
    the rounds counts: what disturbs the machine only adds.
    """
    runs: dict[int, list[_Spread]] = {shards: [] for shards in SPREAD_COUNTS}
    for _ in range(SPREAD_ROUNDS):
        for shards in SPREAD_COUNTS:
            async with start_system(servers, shards) as system:
                runs[shards].append(await _spread(servers, system, count))
    first = min(sum(one.cpu.values()) for one in runs[SPREAD_COUNTS[0]])
    for shards, found in runs.items():
        cpu = min((one.cpu for one in found), key=lambda parts: sum(parts.values()))
        idle = min((one.idle for one in found), key=lambda parts: sum(parts.values()))
        used, rested = sum(cpu.values()), sum(idle.values())
        figures.add(
            Figure(f"spread_{shards}_rate", max(one.rate for one in found), "packets/s"),
            Figure(f"spread_{shards}_cpu", used, CPU, first, SPREAD_BAR, is_time=True, note=_parts(cpu)),
            Figure(f"spread_{shards}_idle", rested, "% of a core", IDLE_LIMIT, 1, is_time=True, note=_parts(idle)),
        )


def _parts(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in found.items())


async def _spread(servers: Servers, system: System, count: int) -> _Spread:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(system.worker("source"))
        sink = await stack.enter_async_context(system.worker("sink"))
        sessions = [
            _session_of(number % max(SPREAD_COUNTS), max(SPREAD_COUNTS), number) for number in range(SPREAD_SESSIONS)
        ]
        for session_id in sessions:
            await system.open_session(session_id, [agents.source, agents.sink])
        load = Load(system.bus, system.pool, sessions)
        await load.send(_round_robin(system, sessions, SPREAD_WARM_UP))
        await until_applied(system.pool, sessions, SPREAD_WARM_UP)
        packets_of_run = _round_robin(system, sessions, count)
        processes = {name: one.process.pid for name, one in {**system.services, "worker": sink}.items()}
        meter, began = await Meter.start(servers, processes), monotonic()
        await load.send(packets_of_run)
        await until_applied(system.pool, sessions, SPREAD_WARM_UP + count)
        rate, cpu = count / (monotonic() - began), await meter.read(count)
        await until_followed(system.pool)
        meter, began = await Meter.start(servers, processes), monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        used = await meter.read(1000)
        idle = {name: 100 * value / (monotonic() - began) for name, value in used.items() if name != "sender"}
    return _Spread(rate, cpu, idle)


def _round_robin(system: System, sessions: list[str], count: int) -> list[Publication]:
    """Return `count` packets, one for each session in turn."""
    each = [
        packets.publications(
            one, agents.source.actor, [agents.sink.agent_id], system.bus.user, -(-count // len(sessions))
        )
        for one in sessions
    ]
    return [publication for turn in zip(*each, strict=True) for publication in turn][:count]


async def _send(system: System, sessions: list[str], count: int, before: int) -> None:
    """Send `count` packets in equal parts, one session after the other; `before` is what was sent already."""
    part = count // len(sessions)
    for session_id in sessions:
        load = packets.publications(session_id, agents.source.actor, [agents.sink.agent_id], system.bus.user, part)
        await Load(system.bus, system.pool, [session_id], sent=before // len(sessions)).send(load)
        await until_applied(system.pool, [session_id], before // len(sessions) + part)


def _session_of(shard: int, shards: int, tag: int = 0) -> str:
    """Return the name of a session that belongs to this shard, another one for each tag."""
    names = map(f"shards-{shard}-{tag}-{{}}".format, itertools.count())
    return next(name for name in names if shard_of(name, shards) == shard)
