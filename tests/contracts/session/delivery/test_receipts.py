"""Receipts in every order: each attempt has one end, and what is outstanding is what is open."""

from typing import Any

import pytest

from apc_contracts.wire.receipts import ReceiptKind

from ..path.test_path import brief

KIND = ReceiptKind


def send(simulation: Any) -> Any:
    start = simulation.start()
    simulation.acknowledge()
    packet, _ = simulation.send("librarian", brief(), "red-1", parent=start, keys=("a",))
    return packet


def counted(simulation: Any) -> int:
    """Open deliveries of red-1, counted as the gate counts them."""
    routed = sum("red-1" in route.recipients for effects in simulation.effects for route in effects.routes)
    return int(routed - sum(effects.ended.count("red-1") for effects in simulation.effects))


def test_a_retry_leaves_one_delivery_outstanding(simulation: Any) -> None:
    packet = send(simulation)
    for attempt in (1, 2, 3):
        simulation.receipts(packet, "red-1", attempt, (KIND.DELIVERY_ACK, KIND.RETRY))
        assert simulation.session.outstanding == {"red-1": 1}
        assert counted(simulation) == 1
    simulation.receipts(packet, "red-1", 4)
    assert counted(simulation) == 0 and not simulation.session.outstanding


@pytest.mark.parametrize("late", [KIND.RETRY, KIND.OUTCOME, KIND.REJECT, KIND.DEAD_LETTERED])
def test_what_follows_a_retry_in_its_message_speaks_of_an_attempt_that_is_over(simulation: Any, late: Any) -> None:
    packet = send(simulation)
    simulation.receipts(packet, "red-1", 1, (KIND.RETRY, late))
    (progress,) = simulation.session.open[packet.packet_id].recipients.values()
    assert (progress.state, progress.attempt, progress.is_open) == ("ROUTED", 2, True)
    assert counted(simulation) == 1


def test_a_requeue_begins_the_next_attempt(simulation: Any) -> None:
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
