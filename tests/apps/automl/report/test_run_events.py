"""The events of a run, read from a real log: evaluations with a score that people know, transfers, refusals."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.log import LogBench, ScriptedGate, hop, packet_entry, session_row

from apc_automl.report.run_log import Event, ModelMeasured, RefusalTold, TransferRuled, Validated, follow_run
from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_log.batch import Entry

OFFER: dict[str, Any] = {
    "from_swarm": "linear",
    "to_swarm": "trees",
    "protocol_id": "sha256:" + "a" * 64,
    "sender_score": 0.9,
    "receiver_score": 0.5,
}
NOTE = "accuracy 96.5%; logarithmic loss 0.1 against 0.6 of the trivial baseline on 80 held-out rows"


def evaluation(phase: str, *notes: str) -> Entry:
    payload = {"metric_set": {"outcome": 0.8}, "pass": True, "notes": list(notes)}
    return packet_entry(packet_type="EVAL", run_phase=phase, payload=payload)


async def followed(url: str, broker: InMemoryBroker, *entries: Entry) -> list[Event]:
    pool = await open_pool(url, max_size=4)
    bench = LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool)
    try:
        await bench.gate.open()
        await bench.gate.log(entries, [session_row(state="CLOSED")])
        await bench.write()
        return [event async for event in follow_run(pool, "run-1")]
    finally:
        await pool.close()


async def test_scores_are_read_from_the_notes(postgres_url: str, memory_broker: InMemoryBroker) -> None:
    made = evaluation("DISCOVERY", "ridge (alpha=1)", NOTE)
    judged = evaluation("VALIDATION", NOTE)
    old = evaluation("DISCOVERY", "ridge (alpha=1)", NOTE.partition("; ")[2])

    found = await followed(postgres_url, memory_broker, made, judged, old)

    assert found == [
        ModelMeasured("swarm-1", 0, 1, 0.8, "ridge (alpha=1)", "accuracy 96.5%"),
        Validated(0, 0.8, True, "accuracy 96.5%"),
        ModelMeasured("swarm-1", 0, 1, 0.8, "ridge (alpha=1)", ""),
    ]


async def test_a_held_transfer_is_told_when_its_barrier_has_come(
    postgres_url: str, memory_broker: InMemoryBroker
) -> None:
    taken, refused, waiting = (
        replace(packet_entry(packet_type="TRANSFER", run_phase="REFINEMENT", payload=OFFER), verdict="held")
        for _ in range(3)
    )
    reason = b'{"refusal": {"code": "THROTTLE_TOP_K", "message": "two are allowed"}}'
    ends = [
        hop(taken, ["policy_pass", "route_selected"], "SCHEMA_VALIDATED", "ROUTED"),
        hop(refused, ["policy_fail"], "SCHEMA_VALIDATED", "FAILED", metadata=reason),
    ]

    found = await followed(postgres_url, memory_broker, taken, refused, waiting, *ends)

    reasons = [event.record.reason for event in found if isinstance(event, TransferRuled)]
    assert sorted(reasons, key=str) == [None, "THROTTLE_TOP_K: two are allowed"]
    assert len(found) == 2, "one that still waits is no news"


@pytest.mark.parametrize("payload", [{"text": "no offer"}, {"from_swarm": ["x"]}])
async def test_a_refused_packet_is_told_whatever_it_holds(
    postgres_url: str, memory_broker: InMemoryBroker, payload: dict[str, Any]
) -> None:
    kinds = ("TRANSFER", "IDEA", "SIGNAL", "EVAL")
    entries = [packet_entry(packet_type=kind, payload=payload, refusal_code="ROLE_FORBIDDEN") for kind in kinds]

    found = await followed(postgres_url, memory_broker, *entries)

    assert found == [RefusalTold("sender-1", kind, "ROLE_FORBIDDEN", "no") for kind in kinds]
