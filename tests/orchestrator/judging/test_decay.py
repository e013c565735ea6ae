"""A protocol that does badly is blocked, stays blocked after a takeover, and recovers; the log says why."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.orchestrator.conftest import House

from apc_contracts import (
    EvalPayload,
    Lineage,
    Packet,
    ProofBundle,
    TransferPayload,
    TransferPolicy,
    parse_packet,
    read_packet,
)
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.contract.contract import load_contract
from apc_contracts.payloads.by_type import DecisionPayload, MetricSet, Thresholds
from apc_contracts.protocol.effectiveness import EvalTally, read_decision
from apc_contracts.vocabulary import TransferMode
from apc_log.placement import LogDatabases
from apc_log.queries import list_protocols
from apc_orchestrator.gate import OtherShards, load_protocols

Build = Callable[..., Packet]


def write_contract(path: Path, **effectiveness: Any) -> Path:
    """Transfers at once, judged on arrival."""
    contract = json.loads((files("apc_contracts") / "data/apc-1.0.json").read_bytes())
    contract["phases"]["RESEARCH"]["packet_types"] += ["TRANSFER", "EVAL"]
    contract["transfer_windows"][0] |= {"is_open": True, "score_multiplier": 1.2}
    contract["effectiveness"] |= effectiveness
    path.write_text(json.dumps(contract))
    return path


@pytest.fixture
def contract_path(tmp_path: Path) -> Path:
    return write_contract(tmp_path / "contract.json")


class Sender:
    """Sends TRANSFERs of swarm red; those with a low score are refused by the window."""

    def __init__(self, house: House, packet: Build, opening: Packet) -> None:
        self.house, self.packet, self.opening = house, packet, opening

    async def send(self, protocol_id: str, *parents: str, score: float = 0.9) -> str:
        """Return the verdict on a TRANSFER: its refusal code, or `accepted`."""
        mode = TransferMode.SELECTIVE_IMPORT
        payload = TransferPayload(
            protocol_id=protocol_id,
            from_swarm="red",
            to_swarm="blue",
            sender_score=score,
            receiver_score=0.5,
            transfer_policy=TransferPolicy(mode=mode, top_k=2),
        )
        lineage = Lineage(protocol_id=protocol_id, parent_protocol_ids=parents, transfer_mode=mode)
        sent = self.packet("red-1", payload, ("blue-1",), parent=self.opening, lineage=lineage)
        await self.house.publish(sent)
        await self.house.quiet()
        row = await self.house.pool.fetchrow(
            "SELECT verdict, refusal_code FROM apc_log.agent_packets WHERE packet_id = $1", sent.packet_id
        )
        return str(row["refusal_code"] or row["verdict"])


def evaluation(packet: Build, opening: Packet, **metrics: float) -> Packet:
    fields = {"rtf": 1.0, "stability": 1.0, "audit": 1.0, "learnability": 1.0, "generalization_ratio": 1.0}
    thresholds = Thresholds(outcome=0.5, **fields)
    payload = EvalPayload.model_validate(
        {"metric_set": MetricSet.model_validate(fields | metrics), "thresholds": thresholds, "pass": True}
    )
    proof = ProofBundle(evidence_refs=("log://measured",), falsifiers=())
    return packet("red-1", payload, ("sentinel",), parent=opening, proof_bundle=proof)


async def decisions(house: House) -> list[tuple[Any, Packet]]:
    rows = await house.pool.fetch(
        "SELECT decision.decay::text AS decay, packet.body_stored FROM apc_log.decay_decisions AS decision "
        "JOIN apc_log.agent_packets AS packet USING (shard, seq) ORDER BY seq"
    )
    return [(read_decision(orjson.loads(row["decay"])), parse_packet(row["body_stored"])) for row in rows]


@pytest.mark.postgres
async def test_a_block_outlasts_a_takeover(house: House, packet: Build, start: Build, contract_path: Path) -> None:
    opening = start()
    sender = Sender(house, packet, opening)
    async with house.persister():
        async with house.gate(contract=str(contract_path)):
            await house.open(opening)
            for _ in range(5):
                assert await sender.send("weak", score=0.5) == "THROTTLE_SCORE"
            assert await sender.send("weak") == "PROTOCOL_DECAYED"
            assert await sender.send("renamed", "weak") == "PROTOCOL_DECAYED"
            assert await sender.send("sound") == "accepted"
        async with house.gate(contract=str(contract_path)):
            assert await sender.send("weak") == "PROTOCOL_DECAYED"
            assert await sender.send("renamed") == "PROTOCOL_DECAYED"
    ((block, said),) = await decisions(house)
    assert block.is_justified(load_contract(contract_path).effectiveness)
    assert (block.kind, block.transfers, block.accepted) == ("blocked", 5, 0)
    decision = said.payload_as(DecisionPayload)
    assert decision.decision_id == "protocol_decay_decision:protocol:weak"
    assert decision.priority_distribution["effectiveness"] == pytest.approx(0.15)
    assert said.trace.root_packet_id == opening.packet_id
    told = {parse_packet(one.message.body).packet_id for one in await house.read("blue-1")}
    assert said.packet_id in told


@pytest.mark.postgres
async def test_a_transfer_after_the_half_life_records_the_recovery(
    house: House, packet: Build, start: Build, tmp_path: Path
) -> None:
    path = write_contract(tmp_path / "contract.json", half_life_ms=200)
    rules = load_contract(path).effectiveness
    opening = start()
    sender = Sender(house, packet, opening)
    async with house.persister(), house.gate(contract=str(path)):
        await house.open(opening)
        for _ in range(5):
            await sender.send("weak", score=0.5)
        ((block, _),) = await decisions(house)
        await house.until(lambda: passed(block.blocked_until))
        assert await sender.send("child", "weak") == "accepted"
        assert await sender.send("weak", score=0.5) == "THROTTLE_SCORE"
    (_, blocked), (recovery, recovered) = await decisions(house)
    assert (recovery.kind, recovery.subject, recovery.blocked_at) == ("recovered", block.subject, block.blocked_at)
    assert recovery.is_justified(rules)
    assert blocked.payload_as(DecisionPayload).decision_id == recovered.payload_as(DecisionPayload).decision_id
    loaded, _ = await load_protocols(LogDatabases(house.pool), load_contract(path))
    assert not loaded.blocks()
    assert {tuple(subject): tally.transfers for subject, tally in loaded.tallies().items()} == {
        ("protocol", "child"): 1,
        ("protocol", "weak"): 1,
        ("cluster", "weak"): 2,
    }


async def passed(moment: datetime) -> bool:
    return datetime.now(UTC) > moment


@pytest.mark.postgres
async def test_recorded_facts_give_the_verdict_again_and_other_shards_learn_of_it(
    house: House, packet: Build, start: Build, contract_path: Path
) -> None:
    contract = load_contract(contract_path)
    opening = start()
    sender = Sender(house, packet, opening)
    before, positions = await load_protocols(LogDatabases(house.pool), contract)
    others = OtherShards(LogDatabases(house.pool))
    beside, places = await load_protocols(LogDatabases(house.pool), contract)
    with others.followed(1, before, positions), others.followed(2, beside, places):
        async with house.persister(), house.gate(contract=str(contract_path)):
            await house.open(opening)
            for _ in range(3):
                await sender.send("weak", score=0.5)
            await others.read()
            for metrics in ({"outcome": 1 / 3, "drift_risk": 0.1 + 0.2}, {"outcome": 0.1234567895}, {"outcome": 1.0}):
                await house.publish(evaluation(packet, opening, **metrics))
            for _ in range(2):
                await sender.send("weak", score=0.5)
            assert await sender.send("child", "weak") == "PROTOCOL_DECAYED"
        await others.read()
    assert beside.tallies() == before.tallies() and places == positions, "each shard of a process reads all of it"
    now = datetime.now(UTC)
    loaded, _ = await load_protocols(LogDatabases(house.pool), contract)
    assert before.decayed(now) == loaded.decayed(now) == {"weak", "child"}
    assert before.tallies() == loaded.tallies()
    scores = EvalTally()
    for outcome, drift_risk in ((1 / 3, 0.1 + 0.2), (0.1234567895, None), (1.0, None)):
        scores.count(outcome, drift_risk)
    assert loaded.scores() == {("run-1", "task-1"): scores}
    (weak,) = await list_protocols(house.pool, contract)
    assert (weak.figures.protocol_id, weak.figures.transfers, weak.figures.accepted) == ("weak", 5, 0)
    assert weak.roots == ("weak",)
    assert weak.blocked_at is not None and weak.blocked_by == "protocol:weak"
    rows = await house.pool.fetch(
        "SELECT body_stored, facts::text AS facts, refusal_code FROM apc_log.agent_packets "
        "WHERE packet_type IN ('TRANSFER', 'DECISION')"
    )
    assert len(rows) == 7
    for row in rows:
        verdict = judge_recorded(read_packet(row["body_stored"]), orjson.loads(row["facts"]), contract)
        assert (verdict.refusal.code if verdict.refusal else None) == row["refusal_code"]
