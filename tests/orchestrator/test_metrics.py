"""What a gate and a log writer count, seen on the page /metrics before and after."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs
from tests.orchestrator.conftest import House

from apc_bus.telemetry import AGENT_SERIES, OTHERS, agent_labels
from apc_contracts import IdeaPayload, Packet
from apc_contracts.wire.receipts import ReceiptKind, Usage
from apc_orchestrator.shard import shard_server
from apc_orchestrator.telemetry import SHOWN_RECIPIENTS, Serving, ShardState, count_batch, follow_gates

Build = Callable[..., Packet]


def value(name: str, **labels: str) -> float:
    """Return a sample now; 0 when there is none yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Growth:
    """By how much samples have grown since they were first asked for."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def watch(self, name: str, **labels: str) -> None:
        self._before[name, tuple(labels.items())] = value(name, **labels)

    def __call__(self, name: str, **labels: str) -> float:
        return value(name, **labels) - self._before[name, tuple(labels.items())]


async def test_a_gate_and_its_log_writer_count(
    house: House, start: Build, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_labels, "most", 2 * AGENT_SERIES)  # tests before may have used up those of the process
    grown = Growth()
    for kind, verdict, code in (("IDEA", "accepted", ""), ("IDEA", "refused", "UNROUTABLE"), ("unread", "repeat", "")):
        grown.watch("apc_gate_packets_total", type=kind, verdict=verdict, code=code)
    for event in ("route_selected", "consumer_apply", "retry_scheduled"):
        grown.watch("apc_gate_lifecycle_events_total", event=event)
    grown.watch("apc_gate_tokens_total", agent="sentinel")
    grown.watch("apc_gate_nacks_total")
    grown.watch("apc_gate_admit_seconds_count")
    grown.watch("apc_gate_batch_inputs_count")
    grown.watch("apc_gate_log_confirm_seconds_count")
    grown.watch("apc_log_commit_seconds_count")
    async with house.persister(), house.gate():
        opening = await house.open(start())
        routed_before = grown("apc_gate_lifecycle_events_total", event="route_selected")
        accepted = packet("red-1", idea, ("sentinel",), parent=opening)
        await house.publish(accepted)
        await house.publish(accepted)
        await house.publish(packet("red-1", idea, ("nobody",), parent=opening))
        await house.quiet()

        assert grown("apc_gate_packets_total", type="IDEA", verdict="accepted", code="") == 1
        assert grown("apc_gate_packets_total", type="IDEA", verdict="refused", code="UNROUTABLE") == 1
        assert grown("apc_gate_packets_total", type="unread", verdict="repeat", code="") == 1
        assert grown("apc_gate_nacks_total") == 1
        assert grown("apc_gate_lifecycle_events_total", event="route_selected") == routed_before + 1
        assert value("apc_gate_shards_held", shard="0") == 1
        assert value("apc_gate_sessions_open", shard="0") == 1
        assert value("apc_gate_outstanding_deliveries", agent="sentinel") == 2, "the IDEA and the SIGNAL of START"
        assert value("apc_gate_outstanding_share", agent="sentinel") == 2 / 1_000
        assert value("apc_log_writer_ready", shard="0") == 1
        logged = await house.pool.fetchval("SELECT next_seq - 1 FROM apc_log.shards WHERE shard = 0")
        assert value("apc_log_entries_total", shard="0") >= logged > 0

        usage = Usage(tokens=7, cost=0.5)
        applied_before = grown("apc_gate_lifecycle_events_total", event="consumer_apply")
        await house.report("sentinel", accepted.packet_id, ReceiptKind.CONSUMER_APPLY)
        await house.report("sentinel", accepted.packet_id, ReceiptKind.OUTCOME, usage=usage)
        await house.report("sentinel", accepted.packet_id, ReceiptKind.OUTCOME, usage=usage)
        await house.quiet()
        assert grown("apc_gate_lifecycle_events_total", event="consumer_apply") == applied_before + 1
        assert grown("apc_gate_tokens_total", agent="sentinel") == 7, "charged once"
        assert value("apc_gate_outstanding_deliveries", agent="sentinel") == 1
        assert grown("apc_gate_lifecycle_events_total", event="retry_scheduled") == 0
    assert grown("apc_gate_admit_seconds_count") >= 3
    assert grown("apc_gate_batch_inputs_count") >= 3
    assert grown("apc_gate_log_confirm_seconds_count") >= 3
    assert grown("apc_log_commit_seconds_count") >= 1
    assert value("apc_gate_shards_held", shard="0") == 0


async def test_recorded_time_that_is_ahead_of_the_clock_is_told_once(
    house: House, start: Build, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch under a clock that is half an hour ahead: what was valid has expired until the gate is restarted."""
    ahead = timedelta(minutes=30)
    monkeypatch.setattr(shard_server, "utc_now", lambda: datetime.now(UTC) + ahead)
    with capture_logs() as logs:
        async with house.persister(), house.gate():
            opening = await house.open(start())
            assert value("apc_gate_recorded_time_ahead_seconds", shard="0") == 0
            ahead = timedelta()
            for _ in range(2):
                await house.publish(packet("red-1", idea, ("sentinel",), parent=opening, ttl_ms=60_000))
                await house.quiet()
            assert 1_700 < value("apc_gate_recorded_time_ahead_seconds", shard="0") <= 1_800
        async with house.persister(), house.gate():
            await house.publish(packet("red-1", idea, ("sentinel",), parent=opening, ttl_ms=60_000))
            await house.quiet()
            assert value("apc_gate_recorded_time_ahead_seconds", shard="0") == 0
    (said,) = (one for one in logs if one["event"] == "recorded_time_ahead")
    assert (said["log_level"], said["shard"]) == ("warning", 0) and "restart" in said["remedy"]
    codes = "SELECT refusal_code FROM apc_log.agent_packets WHERE packet_type = 'IDEA' ORDER BY seq"
    assert [row["refusal_code"] for row in await house.pool.fetch(codes)] == ["EXPIRED", "EXPIRED", None]


class Gate:
    """What the metrics read of a gate with one shard, which it holds or not."""

    def __init__(self, shard: int, *, holds: bool, **served: Any) -> None:
        self.shards = (ShardState(shard),)
        fields: dict[str, Any] = {
            "epoch": 2,
            "open_sessions": 1,
            "seconds_ahead": 0.0,
            "outstanding": {},
            "hosts": None,
        }
        if holds:
            self.shards[0].take(cast(Serving, SimpleNamespace(**fields | served)))


def test_a_gate_that_has_stopped_hides_no_other() -> None:
    """Until its memory is collected it is there beside the gate that took its shard over."""
    shard = 977
    gates = [Gate(shard, holds=holds) for holds in (False, False, True, False)]
    for gate in gates:
        follow_gates(gate)

    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    held = [one.value for one in samples if one.name == "apc_gate_shards_held" and one.labels["shard"] == str(shard)]

    assert held == [1]


def test_of_5000_recipients_those_nearest_to_their_bound_are_shown() -> None:
    """A hosted one has a lower bound than the others; what has no sample is counted all the same."""
    many = {f"a-{number}": (number, 1_000) for number in range(1, 5_001)}
    gate = Gate(976, holds=True, outstanding=many | {"hosted": (249, 250)}, hosts=(3, 1))
    follow_gates(gate)
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    shares = {one.labels["agent"]: one.value for one in samples if one.name == "apc_gate_outstanding_share"}
    assert len(shares) == SHOWN_RECIPIENTS and shares["a-5000"] == 5 and "a-1" not in shares
    open_now = {one.labels["agent"]: one.value for one in samples if one.name == "apc_gate_outstanding_deliveries"}
    assert sum(open_now.values()) == sum(range(5_001)) + 249
    assert open_now.keys() == shares.keys() | {OTHERS}
    assert (value("apc_gate_hosts", state="present"), value("apc_gate_hosts", state="gone")) == (3, 1)
    assert len(samples) < 2_000


def test_a_hosted_agent_is_near_its_bound_with_fewer_deliveries() -> None:
    gate = Gate(975, holds=True, outstanding={"hosted": (225, 250), "alone": (225, 1_000)})
    follow_gates(gate)
    assert value("apc_gate_outstanding_share", agent="hosted") == 0.9
    assert value("apc_gate_outstanding_share", agent="alone") == 0.225


def test_a_batch_without_inputs_is_no_batch_of_inputs() -> None:
    class Empty:
        entries: list[Any] = []  # noqa: RUF012
        admit_seconds: list[float] = []  # noqa: RUF012
        repeats = 0
        nacks = 0

    before = value("apc_gate_batch_inputs_count")
    count_batch(Empty(), 0, None)
    assert value("apc_gate_batch_inputs_count") == before
