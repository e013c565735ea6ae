"""Receipts in every order: each attempt has one end, and what is outstanding is what is open."""

from datetime import timedelta
from typing import Any

import pytest
from tests.contracts.session.conftest import Simulation

from apc_contracts.session.advance import advance
from apc_contracts.session.movement import ReceiptsInput
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage, steps_of

from ..path.way import brief

KIND = ReceiptKind


def send(simulation: Simulation) -> Any:
    start = simulation.start()
    simulation.acknowledge()
    packet, _ = simulation.send("librarian", brief(), "red-1", parent=start, keys=("a",))
    return packet


def counted(simulation: Simulation) -> int:
    """Open deliveries of red-1, counted as the gate counts them."""
    routed = sum("red-1" in route.recipients for effects in simulation.effects for route in effects.routes)
    return int(routed - sum(effects.ended.count("red-1") for effects in simulation.effects))


def test_a_retry_leaves_one_delivery_outstanding(simulation: Simulation) -> None:
    packet = send(simulation)
    for attempt in (1, 2, 3):
        simulation.receipts(packet, "red-1", attempt, (KIND.DELIVERY_ACK, KIND.RETRY))
        assert simulation.session.outstanding == {"red-1": 1}
        assert counted(simulation) == 1
    simulation.receipts(packet, "red-1", 4)
    assert counted(simulation) == 0 and not simulation.session.outstanding


@pytest.mark.parametrize("late", [KIND.RETRY, KIND.OUTCOME, KIND.REJECT, KIND.DEAD_LETTERED])
def test_what_follows_a_retry_in_its_message_speaks_of_an_attempt_that_is_over(
    simulation: Simulation, late: Any
) -> None:
    packet = send(simulation)
    simulation.receipts(packet, "red-1", 1, (KIND.RETRY, late))
    (progress,) = simulation.session.open[packet.packet_id].recipients.values()
    assert (progress.state, progress.attempt, progress.is_open) == ("ROUTED", 2, True)
    assert counted(simulation) == 1


def test_a_requeue_begins_the_next_attempt(simulation: Simulation) -> None:
    packet = send(simulation)
    simulation.receipts(packet, "red-1", 1, (KIND.DEAD_LETTERED,))
    assert counted(simulation) == 0
    simulation.receipts(packet, "red-1", 1, (KIND.REQUEUE,))
    simulation.receipts(packet, "red-1", 1, (KIND.REQUEUE,))
    assert counted(simulation) == 1
    simulation.receipts(packet, "red-1", 2, (KIND.DEAD_LETTERED,))
    simulation.receipts(packet, "red-1", 2, (KIND.DISCARD,))
    assert packet.packet_id not in simulation.session.open
    assert counted(simulation) == 0


@pytest.mark.parametrize("is_merged", [False, True], ids=["three receipts", "one receipt with all times"])
def test_one_receipt_with_all_times_makes_the_same_hop_as_three(simulation: Simulation, is_merged: bool) -> None:
    packet = send(simulation)
    now = simulation.now
    merged = Receipt(
        packet_id=packet.packet_id,
        session_id="s-1",
        recipient="red-1",
        kind=ReceiptKind.OUTCOME,
        attempt=1,
        at=now + timedelta(seconds=3),
        delivered_at=now + timedelta(seconds=1),
        applied_at=now + timedelta(seconds=2),
        usage=Usage(tokens=7),
    )
    found = (merged,) if is_merged else tuple(steps_of(merged))
    assert len(found) == (1 if is_merged else 3)
    effects = advance(simulation.session, ReceiptsInput(found, now, frozenset()), simulation.contract).effects
    hop = next(hop for hop in effects.hops if hop.recipient == "red-1")
    assert (hop.from_state, hop.to_state, hop.events) == ("ROUTED", "APPLIED", ["delivery_ack", "consumer_apply"])
    assert hop.occurred_at == [merged.delivered_at, merged.applied_at]
    assert hop.metadata == {"ended": "outcome", "ended_at": merged.at.isoformat(), "usage": {"tokens": 7}}
