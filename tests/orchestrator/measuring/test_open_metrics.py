"""EVALs with open metrics through gate, log and replay: the gates of tasks read them, nothing of research does.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

import json
from typing import Any

import pytest
from tests.contracts.session.path.way import evaluation
from tests.orchestrator.conftest import House
from tests.orchestrator.judging.test_task_sessions import begin, open_task, work
from tests.support.traffic.packets import make_packet

from apc_contracts import OpenEvalPayload, Packet, PacketRefused, parse_packet, seal
from apc_contracts.payloads.by_type import MetricLimit
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_log.protocol_evidence import EVALS, MEASURED, NEWS

EVENTS = "SELECT events FROM apc_log.packet_events WHERE packet_id = $1 AND recipient = $2 ORDER BY seq"
FAST = {"latency_ms": MetricLimit(max=200.0), "recall": MetricLimit(min=0.9)}


def measured(latency: float, *, passed: bool = True) -> OpenEvalPayload:
    return OpenEvalPayload(metrics={"latency_ms": latency, "recall": 0.95, "cost": -3.5}, limits=FAST, passed=passed)


async def events_of(house: House, packet: Packet, recipient: str = ORCHESTRATOR) -> set[str]:
    rows = await house.pool.fetch(EVENTS, packet.packet_id, recipient)
    return {event for row in rows for event in row["events"]}


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_limits_decide_and_the_senders_pass_does_not(house: House, is_taken_over: bool) -> None:
    """Also when a new gate finishes what the first one has delivered."""
    async with house.persister():
        async with house.gate():
            task = await begin(house, open_task())
            good = work("blue-1", measured(120.0, passed=False), ("red-1",), parent=task, version="apc/1.1")
            bad = work("blue-1", measured(250.0), ("red-1",), parent=task, version="apc/1.1")
            for packet in (good, bad):
                await house.publish(packet)
            await house.quiet()
            if not is_taken_over:
                await house.handle_all()
        if is_taken_over:
            async with house.gate():
                await house.handle_all()
        promoted, ended = await events_of(house, good, "red-1"), await events_of(house, bad, "red-1")
        evidence = await house.pool.fetch(NEWS.format(query=EVALS) + MEASURED, [0], [0], [1_000])
    assert "promotion_eligible" in promoted and "non_promotable_complete" not in promoted
    assert "non_promotable_complete" in ended and "promotion_eligible" not in ended
    assert evidence == []


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "both": (json.loads(evaluation(0.5).model_dump_json()), "payload.metrics", "unknown field"),
    "none": ({"metrics": {}}, "payload.metrics", "at least 1"),
    "text": ({"metrics": {"x": "fast"}}, "payload.metrics.x", "must be a number"),
    "a limit of nothing": ({"limits": {"y": {"min": 1}}}, "payload.limits.y", "y is not measured"),
    "an empty limit": ({"limits": {"x": {}}}, "payload.limits.x", "min, max or both"),
    "exchanged": ({"limits": {"x": {"min": 2, "max": 1}}}, "payload.limits.x.min", "min is above max"),
    "another word": ({"limits": {"x": {"most": 1}}}, "payload.limits.x.most", "unknown field"),
    "too many": ({"metrics": {f"m{n}": 1 for n in range(257)}}, "payload.metrics", "at most 256"),
    "thresholds": ({"thresholds": {}}, "payload.thresholds", "unknown field"),
}


def document(version: str = "apc/1.1", **payload: Any) -> bytes:
    packet = make_packet("red-1", OpenEvalPayload(metrics={"x": 1.0}, passed=True), version="apc/1.1")
    found = json.loads(seal(packet).body) | {"protocol_version": version}
    found["payload"] |= payload
    return json.dumps(found).encode()


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_measurement_is_refused_with_its_place(name: str) -> None:
    payload, path, message = WRONG[name]
    with pytest.raises(PacketRefused) as refused:
        parse_packet(document(**payload))
    assert refused.value.code == "SCHEMA_INVALID"
    places = f"{refused.value.path}: {refused.value.message}"
    assert message in refused.value.message and refused.value.path == path, places


def test_1_0_has_its_metric_set_alone() -> None:
    with pytest.raises(PacketRefused) as refused:
        parse_packet(document("apc/1.0"))
    assert (refused.value.code, refused.value.path) == ("SCHEMA_INVALID", "payload.metric_set")
    old = make_packet("red-1", evaluation(0.5))
    assert parse_packet(seal(old).body) == old and old.protocol_version == "apc/1.0"
