"""When a retried delivery comes again, and what a gate makes of its alarm."""

from datetime import timedelta
from importlib.resources import files
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.session.conftest import Simulation

from apc_contracts import Contract, Packet, RetractionPayload, load_contract
from apc_contracts.contract.contract import contract_from_bytes
from apc_contracts.contract.file import RetryBackoff
from apc_contracts.packet import MAX_TTL_MS
from apc_contracts.session.receipts import backoff_ms
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.receipts import SET_ASIDE, ReceiptKind

from ..path.way import brief

KIND = ReceiptKind
SECOND = timedelta(seconds=1)
BACKOFFS = st.builds(
    RetryBackoff,
    first_ms=st.integers(1, 10_000),
    factor=st.floats(1.0, 10.0),
    longest_ms=st.integers(1, MAX_TTL_MS),
    jitter=st.floats(0.0, 1.0),
)


@given(BACKOFFS, st.uuids(), st.integers(1, 10**9))
def test_a_backoff_grows_up_to_its_longest_less_its_jitter(backoff: RetryBackoff, packet: UUID, attempt: int) -> None:
    full = min(backoff.first_ms * backoff.factor ** min(attempt - 1, 64), backoff.longest_ms)
    delay = backoff_ms(backoff, packet, "red-1", attempt)
    assert max(1, int(full * (1 - backoff.jitter))) <= delay <= max(1, round(full))


def test_deliveries_that_failed_together_do_not_come_together() -> None:
    backoff = load_contract().session.retry_backoff
    assert backoff is not None
    delays = {backoff_ms(backoff, UUID(int=n), agent, 5) for n in range(50) for agent in ("red-1", "blue-1")}
    assert len(delays) > 95 and max(delays) - min(delays) > 3_000, "of 8 s up to half is taken off"


def sent(simulation: Simulation, **fields: Any) -> Any:
    start = simulation.start()
    simulation.acknowledge()
    packet, _ = simulation.send("librarian", brief(), "red-1", parent=start, keys=("a",), **fields)
    simulation.inboxes["red-1"].clear()
    return packet


def retry_of(simulation: Simulation) -> dict[str, Any]:
    (hop,) = [hop for hop in simulation.effects[-1].hops if "retry_scheduled" in hop.events]
    assert hop.metadata is not None
    found: dict[str, Any] = hop.metadata["retry"]
    return found


def test_a_handler_names_the_delay(simulation: Simulation) -> None:
    packet = sent(simulation)
    due = simulation.now + 5 * SECOND
    simulation.receipts(packet, "red-1", 1, (KIND.RETRY,), after_ms=5_000)
    assert retry_of(simulation) == {"asked_ms": 5_000, "delay_ms": 5_000, "due_at": due.isoformat()}
    simulation.pass_time(seconds=4.9)
    assert not simulation.inboxes["red-1"], "an alarm before its time is another round"
    simulation.pass_time(seconds=0.1)
    assert list(simulation.inboxes["red-1"]) == [(packet, 2)]
    simulation.receipts(packet, "red-1", 2)
    assert packet.packet_id not in simulation.session.open and not simulation.session.outstanding


def test_without_a_delay_each_attempt_waits_longer(simulation: Simulation, contract: Contract) -> None:
    packet = sent(simulation)
    for attempt in (1, 2, 3, 4):
        simulation.receipts(packet, "red-1", attempt, (KIND.DELIVERY_ACK, KIND.RETRY))
        delay = retry_of(simulation)["delay_ms"]
        backoff = contract.session.retry_backoff
        assert backoff is not None and delay == backoff_ms(backoff, packet.packet_id, "red-1", attempt)
        assert 250 * 2 ** (attempt - 1) <= delay <= 500 * 2 ** (attempt - 1)
        simulation.pass_time(seconds=delay / 1000)
        assert simulation.inboxes["red-1"].pop() == (packet, attempt + 1)


def test_a_contract_without_a_backoff_tries_again_at_once(simulation: Simulation, contract: Contract) -> None:
    document = orjson.loads((files("apc_contracts") / "data/apc-1.0.json").read_bytes())
    del document["session"]["retry_backoff"]
    simulation.contract = contract_from_bytes(orjson.dumps(document))
    packet = sent(simulation)
    simulation.receipts(packet, "red-1", 1, (KIND.RETRY,))
    assert list(simulation.inboxes["red-1"]) == [(packet, 2)]
    (hop,) = [hop for hop in simulation.effects[-1].hops if "retry_scheduled" in hop.events]
    assert "retry" not in (hop.metadata or {})
    simulation.receipts(packet, "red-1", 2, (KIND.RETRY,), after_ms=1_000)
    assert retry_of(simulation)["delay_ms"] == 1_000


def test_a_packet_that_expires_meanwhile_is_not_handed_out(simulation: Simulation) -> None:
    packet = sent(simulation, routing={"ttl_ms": 3_000})
    simulation.receipts(packet, "red-1", 1, (KIND.RETRY,), after_ms=60_000)
    assert retry_of(simulation)["delay_ms"] == 3_000, "it ends when the packet does, not later"
    simulation.pass_time(seconds=3)
    (hop,) = simulation.effects[-1].hops
    assert (hop.to_state, hop.attempt, hop.events) == ("EXPIRED", 2, ["ttl_expired"])
    assert not simulation.inboxes["red-1"] and not simulation.session.outstanding


@pytest.mark.parametrize("what", ["handled", "rejected", "requeued", "retracted"])
def test_an_alarm_of_an_attempt_that_has_begun_or_ended_does_nothing(simulation: Simulation, what: str) -> None:
    packet = sent(simulation)
    simulation.receipts(packet, "red-1", 1, (KIND.RETRY,), after_ms=1_000)
    if what == "requeued":  # dead meanwhile, and recreated without a delay
        simulation.receipts(packet, "red-1", 2, (KIND.DEAD_LETTERED,))
        simulation.receipts(packet, "red-1", 2, (KIND.REQUEUE,))
        assert simulation.inboxes["red-1"].pop() == (packet, 3)
    elif what == "retracted":
        simulation.session.open.clear()
    else:
        simulation.receipts(packet, "red-1", 2, (KIND.OUTCOME if what == "handled" else KIND.REJECT,))
    before = len(simulation.effects)
    simulation.pass_time(seconds=1)
    assert not simulation.inboxes["red-1"]
    assert not any(effects.hops or effects.due for effects in simulation.effects[before:])


def test_an_alarm_may_come_twice(simulation: Simulation) -> None:
    """A new lease holder re-arms every pending retry: the worker drops the second delivery of an attempt."""
    packet = sent(simulation)
    simulation.receipts(packet, "red-1", 1, (KIND.RETRY,), after_ms=1_000)
    simulation.put_off *= 2
    simulation.pass_time(seconds=1)
    assert list(simulation.inboxes["red-1"]) == [(packet, 2)] * 2
    assert simulation.session.outstanding == {"red-1": 1}


def told(simulation: Simulation, packet: Packet) -> list[Any]:
    """Payloads of the ERRORs about a packet that the orchestrator has sent."""
    return [
        one.payload
        for one in simulation.packets
        if one.packet_type is PacketType.ERROR and one.trace.parent_packet_id == packet.packet_id
    ]


def test_the_sender_hears_of_a_delivery_that_failed_permanently(simulation: Simulation) -> None:
    packet = sent(simulation, routing={"retry_limit": 1})
    for attempt in (1, 2):
        simulation.receipts(packet, "red-1", attempt, (KIND.DELIVERY_ACK, KIND.RETRY))
    (error,) = told(simulation, packet)
    assert (error.error_code, error.retryable) == ("DELIVERY_FAILED", False)
    assert error.details == {
        "packet_id": str(packet.packet_id),
        "recipient": "red-1",
        "attempt": 2,
        "reason": "retry_limit 1 reached: no reason given",
    }
    assert simulation.session.open[packet.packet_id].recipients["red-1"].state == "DEAD_LETTERED"
    assert [one.packet_type for one, _ in simulation.inboxes["librarian"]] == [PacketType.ERROR]


@pytest.mark.parametrize(
    ("reason", "count", "is_retryable"),
    [
        ("handler_error", 0, None),
        ("overflow", 1, True),
        ("delivery_limit", 1, False),
        (SET_ASIDE, 1, False),
        (None, 1, False),
    ],
)
def test_who_has_heard_from_the_recipient_is_not_told_again(
    simulation: Simulation, reason: str | None, count: int, is_retryable: bool | None
) -> None:
    packet = sent(simulation)
    simulation.receipts(packet, "red-1", 1, (KIND.DEAD_LETTERED,), error=reason)
    errors = told(simulation, packet)
    assert len(errors) == count and all(error.retryable is is_retryable for error in errors)
    simulation.receipts(packet, "red-1", 1, (KIND.DEAD_LETTERED,), error=reason)
    assert len(told(simulation, packet)) == count, "once"


def test_nobody_is_told_of_what_is_never_answered(simulation: Simulation) -> None:
    start = simulation.start()
    (sync, attempt), *_ = simulation.inboxes["red-1"]
    simulation.receipts(sync, "red-1", attempt, (KIND.DEAD_LETTERED,))
    retraction, _ = simulation.send(
        "librarian", RetractionPayload(target_packet_id=start.packet_id, reason="r"), "red-1"
    )
    simulation.receipts(retraction, "red-1", 1, (KIND.DEAD_LETTERED,))
    assert not told(simulation, sync) and not told(simulation, retraction)
