"""Tamperings with table sessions, each rolled back: a replay of the entries finds them."""

from random import Random

import pytest
from msgspec.structs import replace
from tests.contracts.session.walk import Walk
from tests.orchestrator.shard.test_loading import CONTRACT, JudgedSimulation
from tests.security.log.tamperings import Tamperer
from tests.support.log import LogBench, disable_guards

from apc_log.batch import LOG_BATCH_TYPE, encode
from apc_log.heads import AnyConnection
from apc_persister.rebuild import rebuild_projections
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.findings import LogFinding, is_covered
from apc_persister.verification.sessions import compare_sessions

TAMPERINGS = 60
_KEEP = "INSERT INTO apc_log.contracts (contract_hash, document) VALUES ($1, $2)"
_CHECKS = "SELECT conname FROM pg_constraint WHERE conrelid = 'apc_log.contracts'::regclass AND contype = 'c'"


async def compare(connection: AnyConnection) -> list[LogFinding]:
    sessions = await compare_sessions(connection, [CONTRACT])
    assert (sessions.compared, sessions.unplayed) == (1, [])
    return sessions.findings


@pytest.fixture
async def walked(bench: LogBench) -> LogBench:
    """The log of a random walk through a session, without its guards."""
    simulation = JudgedSimulation(CONTRACT)
    walk = Walk(simulation, 7)
    for _ in range(40):
        walk.step()
    await bench.gate.open()
    for number, batch in enumerate(simulation.batches, 1):
        sealed = replace(batch.seal(0, number), epoch=1)
        await bench.gate.publish(encode(sealed), LOG_BATCH_TYPE)
    await bench.write()
    await disable_guards(bench.pool)
    return bench


async def test_each_tampering_with_a_session_is_found(walked: LogBench) -> None:
    async with walked.pool.acquire() as connection:
        assert await compare(connection) == []
        for seed in range(TAMPERINGS):
            transaction = connection.transaction(isolation="repeatable_read")
            await transaction.start()
            tampering = await (await Tamperer.open(connection, Random(seed))).tamper("sessions")
            findings = (await compare_sessions(connection, [CONTRACT])).findings
            await transaction.rollback()
            if is_covered(tampering.table, tampering.column):
                assert findings and all(finding.place for finding in findings), tampering.text
        assert await compare(connection) == []


async def test_a_session_without_its_contract_is_not_compared(walked: LogBench) -> None:
    async with walked.pool.acquire() as connection:
        sessions = await compare_sessions(connection, [])
    assert sessions.findings == [] and "contract" in sessions.unplayed[0]


SPOILED = (
    "UPDATE apc_log.sessions SET state = 'FINALIZED', is_terminal = true, document = document - 'round'",
    "DELETE FROM apc_log.sessions",
    "INSERT INTO apc_log.sessions (shard, epoch, batch_no, session_id, run_id, state, is_terminal, round, generation, "
    "step, open_deliveries, document) VALUES (0, 1, 1, 'planted', 'r', 'RESEARCHING', false, 0, 0, 0, 9, '{}')",
    "DELETE FROM apc_log.packet_ids WHERE seq % 3 = 0",
    "DELETE FROM apc_log.contracts",
)


async def stored(connection: AnyConnection) -> dict[str, list[tuple[object, ...]]]:
    columns = {
        "sessions": "shard, epoch, batch_no, session_id, run_id, state, is_terminal, round, generation, step, "
        "open_deliveries, document::text",
        "packet_ids": "session_id, packet_id, packet_hash, payload_hash, shard, seq",
        "contracts": "contract_hash, document",
    }
    return {
        table: sorted(map(tuple, await connection.fetch(f"SELECT {names} FROM apc_log.{table}")), key=repr)
        for table, names in columns.items()
    }


@pytest.mark.parametrize("statement", SPOILED)
async def test_what_was_spoiled_is_rebuilt_from_the_entries(walked: LogBench, statement: str) -> None:
    async with walked.pool.acquire() as connection:
        await connection.execute(_KEEP, CONTRACT.hash, CONTRACT.body)
        before = await stored(connection)
        await connection.execute(statement)
        assert await stored(connection) != before
        done = await rebuild_projections(connection, [CONTRACT])
        assert done.sessions.left == []
        assert await stored(connection) == before
        assert await compare(connection) == [] and await compare_derived(connection) == []
        again = await rebuild_projections(connection, [CONTRACT])
        assert (again.sessions.mended, again.packet_ids, again.contracts) == (0, 0, 0)


async def test_a_session_without_its_contract_is_left_as_it_is(walked: LogBench) -> None:
    async with walked.pool.acquire() as connection:
        before = await stored(connection)
        done = await rebuild_projections(connection)
        assert "contract" in done.sessions.left[0] and await stored(connection) == before


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE apc_log.contracts SET document = 'x'", "the bytes do not have this hash"),
        ("UPDATE apc_log.contracts SET contract_hash = sha256('x'), document = 'x'", "it is missing"),
    ],
)
async def test_a_contract_that_was_changed_is_found(walked: LogBench, statement: str, says: str) -> None:
    async with walked.pool.acquire() as connection:
        await connection.execute(_KEEP, CONTRACT.hash, CONTRACT.body)
        assert await compare_derived(connection) == []
        for (name,) in await connection.fetch(_CHECKS):
            await connection.execute(f'ALTER TABLE apc_log.contracts DROP CONSTRAINT "{name}"')
        await connection.execute(statement)
        (finding,) = await compare_derived(connection)
        assert says in finding.message and finding.place.startswith("contracts ")
