"""The views say what the contract says."""

import asyncpg
from tests.support.log import LogBench, coordination, lifecycle, packet_entry, session_row

from apc_contracts import load_contract
from apc_log.batch import PacketEntry


async def test_every_event_of_the_lifecycle_has_the_contracts_target(pool: asyncpg.Pool) -> None:
    edges = load_contract().machine("packet_lifecycle").edges
    for edge in edges:
        assert await pool.fetchval("SELECT apc_log.lifecycle_target($1)", edge.event) == edge.target, edge
    assert await pool.fetchval("SELECT apc_log.lifecycle_target('no such event')") is None


async def test_every_state_that_is_not_final_has_a_rank(pool: asyncpg.Pool) -> None:
    machine = load_contract().machine("packet_lifecycle")
    states = {edge.target for edge in machine.edges} | {machine.initial}
    unranked = {s for s in states if await pool.fetchval("SELECT apc_log.lifecycle_rank($1)", s) is None}
    assert unranked == {"REJECTED_SCHEMA", "REJECTED_POLICY", "EXPIRED", "RETRACTED"}


async def test_the_packet_as_jsonb(bench: LogBench) -> None:
    packet = packet_entry(text="hällo \U0001f600")
    await log(bench, packet)
    text = await bench.pool.fetchval("SELECT packet #>> '{payload,text}' FROM apc_log.packets")
    assert text == "hällo \U0001f600"


async def test_the_latest_state_of_each_recipient(bench: LogBench) -> None:
    await log(bench, packet_entry(recipients=("a", "b")))
    rows = await bench.pool.fetch("SELECT recipient, state FROM apc_log.packet_recipient_state ORDER BY recipient")
    assert [tuple(row) for row in rows] == [("", "ROUTED"), ("a", "ARCHIVED"), ("b", "ARCHIVED")]


async def test_the_state_of_a_session_by_its_log_is_that_of_the_projection(bench: LogBench) -> None:
    await log(bench, packet_entry())
    by_log = await bench.pool.fetchrow("SELECT session_id, state, step FROM apc_log.session_state")
    projected = await bench.pool.fetchrow("SELECT session_id, state, step FROM apc_log.sessions")
    assert by_log == projected


async def log(bench: LogBench, packet: PacketEntry) -> None:
    await bench.gate.open()
    moves = [
        coordination(packet, 1, "research_briefs_dispatched", "SESSION_OPEN", "DIFFERENTIATED_RESEARCH"),
        coordination(packet, 2, "all_swarms_ready", "DIFFERENTIATED_RESEARCH", "INDEPENDENT_DISCOVERY"),
    ]
    row = session_row(step=2, state="INDEPENDENT_DISCOVERY")
    await bench.gate.log([packet, *lifecycle(packet), *moves], [row])
    await bench.write()
