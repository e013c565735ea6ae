"""Random sessions under random rules: what the gate ruled, a replay, a takeover and one packet alone rule again."""

import os
from random import Random

import pytest
from tests.contracts.session.room import REGISTERED, registry
from tests.contracts.session.room_walk import RoomWalk, contract_with
from tests.orchestrator.shard.test_loading import JudgedSimulation
from tests.support.log.batch_records import BatchRecords

from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.replay.entries import RecordedPacket
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.parsing import read_packet
from apc_log.queries import verify_run

PACKETS = int(os.environ.get("APC_TEST_RULE_PACKETS", "1500"))
"""Judged in all; `make test-rules` judges 100,000."""
SESSIONS_OF_A_CONTRACT = 3
ACTS = 60


@pytest.mark.parametrize("seed", range(max(PACKETS // (SESSIONS_OF_A_CONTRACT * ACTS), 1)))
async def test_gate_replay_and_one_packet_alone_agree(seed: int) -> None:
    random = Random(seed)
    contract = contract_with(random)
    for _ in range(SESSIONS_OF_A_CONTRACT):
        simulation = JudgedSimulation(contract, registry=registry(), schemas=REGISTERED)
        walk = RoomWalk(simulation, random)
        for _ in range(ACTS):
            if simulation.session.is_terminal:
                break
            walk.step()
        records = BatchRecords([batch.seal(0, 1) for batch in simulation.batches])
        (run_id,) = records.runs
        replayed = await verify_run(records, run_id, [contract], other=contract)
        assert replayed.problem is None
        assert replayed.changes == (), "the same contract would have decided the same"
        (entries,) = records.entries.values()
        alone = [entry for entry in entries if isinstance(entry, RecordedPacket)]
        for entry in alone:
            assert entry.body is not None
            received = read_packet(entry.body)
            if received.packet.sender.agent_id == ORCHESTRATOR:
                continue
            verdict = judge_recorded(received, dict(entry.facts), contract)
            assert verdict.kind is VerdictKind(entry.verdict), (entry.refusal, verdict.refusal)
            assert (None if verdict.refusal is None else verdict.refusal.document) == entry.refusal
            assert verdict.facts.get("rules") == entry.facts.get("rules")
