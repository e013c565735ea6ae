"""Search and the list of runs over a large log: `python -m benchmarks.database.searching`.

The rows are made by SQL; the follower fills its tables from them as it does beside a log writer.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import asyncpg

from apc_bus.database import open_pool
from apc_log.queries.run_cards import AfterRun, RunsWanted, page_of_cards
from apc_log.queries.search import Wanted, search_log
from apc_persister.follower import PIECE, PROJECTIONS, fill
from benchmarks.support.amounts import at_least
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import start_servers

PACKETS = 1_000_000
PACKETS_A_RUN = 10
FOLLOWED = 20_000
BAR_MS = 300
ASKED = 40
"""Searches of each kind."""
CODES = ("SENDER_QUOTA", "NO_SUCH_RECIPIENT", "THROTTLE_SCORE")
WORDS = 20_000
"""Different words that the contents are made of; word n occurs about 1/n as often as the first."""

# Packet i of run i / 10: its START, its input, and what the agents say about it.
_PACKETS = r"""
INSERT INTO apc_log.agent_packets (
    shard, seq, epoch, batch_no, packet_id, packet_type, channel, run_phase, session_id, run_id, task_id,
    root_packet_id, sender_agent_id, sender_role, sender_swarm_id, recipients, generation, round, step, confidence,
    created_at, expires_at, judged_at, verdict, refusal_code, refusal, contract_hash, facts,
    body_stored, stored_hash, packet_hash, user_id)
SELECT 0, i + 1, 1, 1, id, type, 'INTER_AGENT', 'EXECUTION', run::text, run::text, run::text, id,
       'agent-' || i % 40, 'clerk', 'desk', ARRAY['agent-' || (i + 1) % 40], 0, 1, i % 10, 0.5, at, at, at,
       CASE WHEN code IS NULL THEN 'accepted' ELSE 'refused' END, code, to_jsonb(code), sha256('c'), '{}', body,
       sha256(body), sha256(body), 'clerk'
FROM (
    SELECT i, ('00000000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid AS id, i / 10 AS run,
           $3::timestamptz + i * interval '0.05 s' AS at,
           CASE WHEN i % 10 = 0 THEN 'SIGNAL' ELSE 'MESSAGE' END AS type,
           CASE WHEN i % 97 = 0 AND i % 10 > 1 THEN ($4::text[])[1 + i % 3] END AS code,
           convert_to(json_build_object(
               'payload', json_build_object('schema', CASE WHEN i % 10 = 1 THEN 'refund/1' ELSE 'note/1' END,
                   'content', json_build_object('order', 'A-' || i / 10, 'euros', i % 1000 / 4.0, 'text', (
                       SELECT string_agg('w' || floor(exp(random() * ln($5::int)))::int, ' ')
                       FROM generate_series(1, 30) WHERE i IS NOT NULL))),
               'metadata', CASE WHEN i % 10 = 0 THEN json_build_object('team', 'desk-' || i / 10 % 20,
                                                                      'customer', i / 10 % 500) END)::text,
               'UTF8') AS body
    FROM generate_series($1::bigint, $2::bigint) AS i
) AS made
"""
_IDS = """
INSERT INTO apc_log.packet_ids SELECT session_id, packet_id, packet_hash, packet_hash, shard, seq
FROM apc_log.agent_packets WHERE packet_type = 'SIGNAL'
"""
_SESSIONS = """
INSERT INTO apc_log.sessions (session_id, shard, epoch, batch_no, run_id, state, is_terminal, round, generation, step,
                              open_deliveries, document, updated_at)
SELECT session_id, 0, 1, 1, run_id, state, state <> 'WORKING', 1, 0, 10, 0, jsonb_build_object(
           'opened_at', judged_at, 'start_packet_id', packet_id, 'members', ARRAY[sender_agent_id, 'agent-1'],
           'spent', jsonb_build_object('packets', 10, 'tokens', seq % 5000, 'cost', seq % 300 / 100.0),
           'work', jsonb_build_object('contract', 'task')), judged_at + interval '1 minute'
FROM (SELECT *, (ARRAY['CLOSED', 'CLOSED', 'HALTED', 'WORKING'])[1 + seq / 10 % 4] AS state
      FROM apc_log.agent_packets WHERE packet_type = 'SIGNAL') AS opened
"""


async def measure(packets: int, figures: Figures) -> None:
    """Make a log of so many packets, let the follower take it, and search it."""
    async with start_servers() as servers:
        url = await servers.fresh_database()
        pool = await open_pool(url, max_size=4)
        began = datetime.now(UTC) - timedelta(seconds=packets * 0.05)
        await _load(pool, packets, began)
        await _follow(pool, packets, figures)
        await _search(pool, packets, began, figures)
        await _list(pool, packets // PACKETS_A_RUN, began, figures)
        await pool.close()


async def _load(pool: asyncpg.Pool, packets: int, began: datetime) -> None:
    async with pool.acquire() as connection:
        await connection.execute("SET session_replication_role = replica")
        for first in range(0, packets, 50_000):
            last = min(first + 50_000, packets) - 1
            await connection.execute(_PACKETS, first, last, began, [*CODES], WORDS, timeout=600)
        await connection.execute(_IDS, timeout=600)
        await connection.execute(_SESSIONS, timeout=600)
        await connection.execute(
            "INSERT INTO apc_log.shards (shard, epoch, batch_no, next_seq) VALUES (0, 1, 1, $1)", packets + 1
        )
        await connection.execute("VACUUM ANALYZE apc_log.agent_packets, apc_log.sessions", timeout=600)


async def _follow(pool: asyncpg.Pool, packets: int, figures: Figures) -> None:
    """Take the first packets as the follower does; the rest at once, with the index of words made behind it."""
    first, took = min(packets, FOLLOWED), 0.0
    async with pool.acquire() as connection:
        for projection in PROJECTIONS[:2]:
            began = time.monotonic()
            for _ in range(0, first, PIECE):
                async with connection.transaction():
                    await fill(connection, projection, {0: first})
            took += time.monotonic() - began
        figures.add(Figure("follower", first / took, "packets/s", note="without a pause: search rows and run cards"))
        async with connection.transaction():
            await connection.execute(
                "SELECT apc_guard.maintain('benchmark'); SET LOCAL maintenance_work_mem = '512MB';"
                "DROP INDEX apc_log.packet_search_words"
            )
            for start in range(first, packets, 50_000):
                until = min(start + 50_000, packets)
                await connection.execute("SELECT apc_log.index_packets(0, $1, $2)", start + 1, until, timeout=600)
                await connection.execute("SELECT apc_log.write_cards(0, $1, $2)", start + 1, until, timeout=600)
            await connection.execute(
                "CREATE INDEX packet_search_words ON apc_log.packet_search USING gin (words)", timeout=600
            )
        await connection.execute("VACUUM ANALYZE apc_log.packet_search, apc_log.run_cards", timeout=600)


async def _search(pool: asyncpg.Pool, packets: int, began: datetime, figures: Figures) -> None:
    chance = random.Random(1)

    def order() -> str:
        return f"A-{chance.randrange(packets // PACKETS_A_RUN)}"

    def word(least: int, most: int) -> str:
        return f"w{chance.randint(least, most)}"

    def end() -> str:
        return f"{chance.randrange(packets):012x}"[-8:]

    hour = began + timedelta(seconds=packets * 0.02)
    kinds: dict[str, Callable[[], Wanted]] = {
        "order": lambda: Wanted(f"refund {order()}"),
        "rare_word": lambda: Wanted(word(5_000, WORDS)),
        "frequent_word": lambda: Wanted(word(1, 3)),
        "two_words": lambda: Wanted(f"{word(1, 20)} {word(1, 200)}"),
        "frequent_beginning": lambda: Wanted("note ref"),
        "nowhere": lambda: Wanted(f"{word(1, 3)} nowhere{chance.random()}"),
        "id_end": lambda: Wanted(end()),
        "agent": lambda: Wanted(agent=f"agent-{chance.randrange(40)}"),
        "agent_word": lambda: Wanted(word(1, 50), agent=f"agent-{chance.randrange(40)}"),
        "code": lambda: Wanted(code=chance.choice(CODES)),
        "schema_since": lambda: Wanted(word(1, 50), schema="refund/1", since=hour),
        "before_hour": lambda: Wanted(word(1, 50), until=hour),
        "run": lambda: Wanted(run_id=str(chance.randrange(packets // PACKETS_A_RUN))),
    }
    for name, wanted in kinds.items():
        figures.add(await _figure_of(f"search_{name}", partial(_searched, pool, wanted)))


async def _searched(pool: asyncpg.Pool, wanted: Callable[[], Wanted]) -> None:
    await search_log(pool, wanted())


async def _list(pool: asyncpg.Pool, runs: int, began: datetime, figures: Figures) -> None:
    chance = random.Random(2)
    day = began + timedelta(hours=1)
    middle = AfterRun(began + timedelta(seconds=runs * 0.25), "")
    kinds: dict[str, Callable[[], Awaitable[object]]] = {
        "newest": lambda: page_of_cards(pool, RunsWanted()),
        "page": lambda: page_of_cards(pool, RunsWanted(), sorted_by="started", after=middle),
        "by_cost": lambda: page_of_cards(pool, RunsWanted(), sorted_by="cost"),
        "customer": lambda: page_of_cards(pool, RunsWanted(tag=f"customer={chance.randrange(500)}", until=day)),
        "team_halted": lambda: page_of_cards(pool, RunsWanted(team=f"desk-{chance.randrange(20)}", outcome="halted")),
        "text": lambda: page_of_cards(pool, RunsWanted(f"A-{chance.randrange(runs)}")),
    }
    for name, ask in kinds.items():
        figures.add(await _figure_of(f"runs_{name}", ask))


async def _figure_of(name: str, ask: Callable[[], Awaitable[object]]) -> Figure:
    """Ask once, then ASKED times; the figure is the 95th percentile, and its note has the median."""
    await ask()
    took = []
    for _ in range(ASKED):
        began = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    note = f"p95 of {ASKED}; p50 {took[ASKED // 2 - 1]:.0f} ms"
    return Figure(name, took[int(ASKED * 0.95) - 1], "ms", BAR_MS, 1.0, is_time=True, note=note)


def main() -> int:
    """Measure, print, and write build/bench-search.json; return 1 when a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.database.searching", description=__doc__)
    parser.add_argument("--packets", type=at_least(1_000), default=PACKETS, help="of the log (default 1,000,000)")
    figures = Figures()
    asyncio.run(measure(parser.parse_args().packets, figures))
    figures.print()
    figures.write(Path("build/bench-search.json"))
    return 1 if figures.missed else 0


if __name__ == "__main__":
    sys.exit(main())
