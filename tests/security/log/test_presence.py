"""A gate's report of signs of life goes past the log: what a wrong or dishonest one can do to it."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.support.log import LogBench

from apc_log.batch import SIGNS_TYPE
from apc_log.queries.agents import read_signs
from apc_persister import transaction


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_no_clock_of_a_gate_makes_an_agent_live_for_years(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        unguarded = transaction._NOTE_SIGNS.replace("least(at, now())", "at")
        monkeypatch.setattr(transaction, "_NOTE_SIGNS", unguarded)
    await bench.gate.open()
    await bench.gate.hear("desk", at=datetime.now(UTC) + timedelta(days=3_650))
    await bench.write()
    signs = await read_signs(bench.pool)
    assert (signs["desk"] <= datetime.now(UTC)) is is_guarded


async def test_a_report_that_cannot_be_stored_stops_no_log(bench: LogBench) -> None:
    """PostgreSQL stores no NUL: by itself the statement fails as often as it is tried."""
    agents, times = ["de\0sk"], [datetime.now(UTC)]
    unguarded = bench.pool.execute(transaction._NOTE_SIGNS, agents, times)
    with pytest.raises(transaction.ENTRY_ERRORS):
        await unguarded
    await bench.gate.open()
    await bench.gate.hear(*agents)
    await bench.gate.hear("desk")
    await bench.gate.publish(b"no report", SIGNS_TYPE)
    await bench.write()
    assert await read_signs(bench.pool) == {}, "those of one transaction are dropped together, and come again"
    await bench.gate.hear("desk")
    await bench.write()
    assert set(await read_signs(bench.pool)) == {"desk"}
    assert await bench.pool.fetchval("SELECT kind FROM apc_log.packet_conflicts") == "unreadable"
