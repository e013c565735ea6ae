"""Tamperings with table sessions, each rolled back: a replay of the entries finds them."""

from random import Random

import pytest
from msgspec.structs import replace
from tests.contracts.session.walk import Walk
from tests.orchestrator.test_loading import CONTRACT, JudgedSimulation
from tests.security.log.tamperings import Tamperer

from apc_log.batch import LOG_BATCH_TYPE, encode
from apc_log.connection import AnyConnection
from apc_persister.evidence.coverage import is_covered
from apc_persister.evidence.findings import Finding
from apc_persister.evidence.sessions import compare_sessions
from apc_persister.testing import LogBench, disable_guards

TAMPERINGS = 60


async def compare(connection: AnyConnection) -> list[Finding]:
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
