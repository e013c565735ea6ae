"""Packets that require an ACK: settled by their recipients, chased by timers, given up with a NACK DEFERRED."""

from typing import Any

from tests.contracts.session.conftest import Simulation

from apc_contracts import AckPayload, NackPayload, Packet, RetractionPayload, SignalPayload
from apc_contracts.session.advance import advance
from apc_contracts.session.document import decode_document
from apc_contracts.session.movement import ReceiptsInput
from apc_contracts.vocabulary import ALL_RECIPIENTS, ORCHESTRATOR, AckStatus, PacketType, Signal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage

from ..path.way import brief

ASKING = {"requires_ack": True, "ack_timeout_ms": 1000, "retry_limit": 2}


def ask(simulation: Simulation, to: str | tuple[str, ...] = ("red-1", "blue-1"), **routing: Any) -> Packet:
    """Return a brief of the librarian that wants an ACK; everything before it is handled."""
    start = simulation.start()
    simulation.acknowledge()
    packet: Packet
    packet, verdict = simulation.send("librarian", brief(), to, parent=start, keys=("a",), routing=ASKING | routing)
    assert verdict.refusal is None, verdict.refusal
    return packet


def answer(simulation: Simulation, agent: str, asked: Packet, status: AckStatus = AckStatus.ACCEPTED) -> Packet:
    fields = {"acked_packet_id": asked.packet_id, "ack_status": status}
    payload = NackPayload(**fields) if status is AckStatus.REJECTED else AckPayload(**fields)
    packet: Packet
    packet, verdict = simulation.send(agent, payload, "librarian", parent=asked)
    assert verdict.refusal is None, verdict.refusal
    return packet


def notes(simulation: Simulation) -> list[str]:
    """Return how each answer so far was recorded, in order."""
    hops = [hop for effects in simulation.effects for hop in effects.hops]
    return [hop.metadata["acknowledges"]["as"] for hop in hops if hop.metadata and "acknowledges" in hop.metadata]


def routed(simulation: Simulation, packet: Packet) -> list[tuple[str, int]]:
    """(recipient, attempt) of each time the packet was handed out."""
    routes = [route for effects in simulation.effects for route in effects.routes]
    return [(one, r.attempt) for r in routes if r.received.packet == packet for one in r.recipients]


def told(simulation: Simulation) -> list[Packet]:
    """Return what the orchestrator answered."""
    types = (PacketType.ACK, PacketType.NACK)
    return [one for one in simulation.packets if one.sender.agent_id == ORCHESTRATOR and one.packet_type in types]


def test_each_recipient_settles_its_own(simulation: Simulation) -> None:
    asked = ask(simulation)
    document = simulation.session.document
    answer(simulation, "red-1", asked)
    assert document.pending_acks[asked.packet_id].missing == ["blue-1"]
    answer(simulation, "blue-1", asked, AckStatus.REJECTED)
    assert not document.pending_acks and not any(kind.startswith("ack") for kind in document.deadlines)
    simulation.pass_time(seconds=5)
    assert notes(simulation) == ["settled", "settled"]
    assert routed(simulation, asked) == [("red-1", 1), ("blue-1", 1)] and not told(simulation)


def test_a_time_out_routes_again_to_who_is_missing_and_then_tells_the_sender(simulation: Simulation) -> None:
    asked = ask(simulation)
    answer(simulation, "red-1", asked)
    simulation.receipts(asked, "blue-1", 1, (ReceiptKind.DELIVERY_ACK,))
    simulation.pass_time(seconds=2.5)
    assert routed(simulation, asked)[2:] == [("blue-1", 2), ("blue-1", 3)] and not told(simulation)
    assert simulation.session.outstanding == {"blue-1": 1, "red-1": 1, "librarian": 1}
    simulation.pass_time(seconds=1)
    (nack,) = told(simulation)
    assert [one.agent_id for one in nack.recipients] == ["librarian"]
    assert (nack.packet_type, nack.payload_as(NackPayload).ack_status) == (PacketType.NACK, AckStatus.DEFERRED)
    assert nack.payload_as(NackPayload).reason == "no ACK from blue-1 (ROUTED): routed 3 times, 1000 ms each"
    assert nack.metadata == {"acknowledgement": {"missing": {"blue-1": "ROUTED"}, "attempts": 3}}
    simulation.pass_time(seconds=10)
    assert len(told(simulation)) == 1 and len(routed(simulation, asked)) == 4


def test_a_late_ack_is_recorded_as_late_once(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1", retry_limit=0)
    simulation.pass_time(seconds=2)
    assert len(told(simulation)) == 1
    for _ in range(2):
        answer(simulation, "red-1", asked)
    answer(simulation, "sentinel", asked)
    assert notes(simulation) == ["late", "not_awaited", "unknown"], "who was not asked has nothing to acknowledge"
    assert not simulation.session.document.overdue_acks


def test_without_a_word_of_the_packet_the_contract_says_how_long(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1", ack_timeout_ms=None, retry_limit=None)
    rules = simulation.contract.session
    pending = simulation.session.document.pending_acks[asked.packet_id]
    assert (pending.timeout_ms, pending.retry_limit) == (rules.ack_timeout_ms, rules.ack_retry_limit)


def test_a_recipient_at_its_end_is_not_asked_again(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1")
    simulation.acknowledge()
    simulation.pass_time(seconds=2)
    (nack,) = told(simulation)
    assert routed(simulation, asked) == [("red-1", 1)]
    assert nack.payload_as(NackPayload).reason == "no ACK from red-1 (ended): routed once, 1000 ms each"


def test_an_expired_packet_is_not_routed_again(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1", ttl_ms=1500)
    simulation.pass_time(seconds=10)
    assert routed(simulation, asked) == [("red-1", 1), ("red-1", 2)] and len(told(simulation)) == 1


def test_a_dead_letter_is_routed_again(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1")
    simulation.receipts(asked, "red-1", 1, (ReceiptKind.DEAD_LETTERED,))
    assert simulation.session.outstanding == {"librarian": 1}, "who is told of it"
    simulation.pass_time(seconds=1)
    assert routed(simulation, asked) == [("red-1", 1), ("red-1", 2)]
    assert simulation.session.outstanding == {"librarian": 1, "red-1": 1}


def test_deadlines_stand_still_in_a_pause(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1")
    simulation.pass_time(seconds=0.5)
    simulation.send("librarian", SignalPayload(signal=Signal.PAUSE))
    simulation.pass_time(seconds=60)
    query = SignalPayload(signal=Signal.QUERY)
    in_pause, _ = simulation.send("librarian", query, "red-1", routing=ASKING)
    simulation.pass_time(seconds=60)
    simulation.send("librarian", SignalPayload(signal=Signal.RESUME))
    assert len(routed(simulation, asked)) == 1
    simulation.pass_time(seconds=0.6)
    assert len(routed(simulation, asked)) == 2 and len(routed(simulation, in_pause)) == 1
    simulation.pass_time(seconds=0.5)
    assert len(routed(simulation, in_pause)) == 2


def test_the_orchestrator_answers_for_itself(simulation: Simulation) -> None:
    asked = ask(simulation, (ORCHESTRATOR, "red-1"))
    (ack,) = told(simulation)
    assert (ack.packet_type, ack.payload_as(AckPayload).acked_packet_id) == (PacketType.ACK, asked.packet_id)
    assert simulation.session.document.pending_acks[asked.packet_id].missing == ["red-1"]


def test_a_broadcast_waits_for_everybody_it_went_to(simulation: Simulation) -> None:
    asked = ask(simulation, ALL_RECIPIENTS)
    missing = simulation.session.document.pending_acks[asked.packet_id].missing
    assert missing == ["blue-1", "judge", "red-1", "sentinel"]


def test_answers_are_never_asked_for_answers(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1")
    payload = AckPayload(acked_packet_id=asked.packet_id, ack_status=AckStatus.ACCEPTED)
    simulation.send("red-1", payload, "librarian", parent=asked, routing=ASKING)
    assert not simulation.session.document.pending_acks


def test_a_retracted_packet_is_not_waited_for(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1")
    simulation.send("librarian", RetractionPayload(target_packet_id=asked.packet_id, reason="r"), parent=asked)
    simulation.pass_time(seconds=10)
    assert len(routed(simulation, asked)) == 1 and not told(simulation)


def test_the_end_of_the_session_ends_the_waiting(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1")
    simulation.send("librarian", SignalPayload(signal=Signal.STOP))
    document = simulation.session.document
    assert not document.pending_acks and not document.deadlines
    answer(simulation, "red-1", asked)
    assert notes(simulation) == ["not_awaited"], "recorded after the end, and nothing follows"


def test_beyond_the_bound_no_more_are_waited_for(simulation: Simulation) -> None:
    bound = simulation.contract.limits.pending_acks
    start = simulation.start()
    codes = []
    for _ in range(bound // 2 + 1):
        routing = ASKING | {"ack_timeout_ms": 3_600_000}
        _, verdict = simulation.send(
            "librarian", SignalPayload(signal=Signal.QUERY), ("red-1", "blue-1"), parent=start, routing=routing
        )
        codes.append(verdict.refusal.code if verdict.refusal else None)
    assert set(codes[:-1]) == {None} and codes[-1] == "OVERLOADED"
    document = simulation.session.document
    assert decode_document(document.encode()) == document and len(document.encode()) < 60_000


def test_retries_have_an_end(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1", ack_timeout_ms=60_000, retry_limit=1)
    simulation.receipts(asked, "red-1", 1, (ReceiptKind.RETRY,))
    assert routed(simulation, asked) == [("red-1", 1), ("red-1", 2)]
    simulation.receipts(asked, "red-1", 2, (ReceiptKind.DELIVERY_ACK, ReceiptKind.RETRY))
    opened = simulation.session.open[asked.packet_id]
    assert opened.recipients["red-1"].state == "DEAD_LETTERED"
    assert simulation.session.outstanding == {"librarian": 1}, "who is told of it"
    (hop,) = [hop for hop in simulation.effects[-2].hops if hop.recipient == "red-1"]
    assert hop.metadata["ended"] == "dead_lettered" and hop.metadata["error"].startswith("retry_limit 1 reached")


def test_what_a_given_up_attempt_has_cost_counts_once(simulation: Simulation) -> None:
    asked = ask(simulation, "red-1")
    simulation.pass_time(seconds=1)

    def cost(attempt: int, kind: ReceiptKind, tokens: int) -> None:
        receipt = Receipt(
            packet_id=asked.packet_id,
            session_id="s-1",
            recipient="red-1",
            kind=kind,
            attempt=attempt,
            usage=Usage(tokens=tokens),
            at=simulation.now,
        )
        given = ReceiptsInput((receipt,), simulation.now)
        simulation.effects.append(advance(simulation.session, given, simulation.contract).effects)

    for _ in range(2):
        cost(1, ReceiptKind.OUTCOME, 30)
    (hop,) = [hop for effects in simulation.effects for hop in effects.hops if hop.metadata and "late" in hop.metadata]
    assert (hop.attempt, hop.to_state, hop.metadata["usage"]) == (1, "", {"tokens": 30})
    for _ in range(2):
        cost(2, ReceiptKind.OUTCOME, 7)
    assert simulation.session.document.spent["tokens"] == 37
