"""What a retraction leaves without ground, and what the log says of a packet that was at its end."""

from typing import Any

import pytest
from tests.contracts.session.conftest import Simulation

from apc_contracts import ClaimPayload, Packet, ProofBundle, RetractionPayload, SignalPayload, load_contract
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.payloads.by_type import ArtifactPayload
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal
from apc_contracts.wire.receipts import ReceiptKind

from ..path.way import evaluation, generation, lineage, model, research, transfer


def claim(name: str) -> ClaimPayload:
    return ClaimPayload(claim_id=name, hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)


def marks_of(simulation: Simulation) -> dict[Any, Any]:
    """packet_id -> why it is stale; twice marked would be an error of the log."""
    found: dict[Any, Any] = {}
    for effects in simulation.effects:
        for hop in effects.hops:
            if hop.events == ["stale"]:
                assert hop.packet_id not in found
                assert (hop.recipient, hop.attempt, hop.from_state, hop.to_state) == ("", 0, "", "")
                found[hop.packet_id] = hop.metadata["stale"]
    return found


def queries_of(simulation: Simulation) -> list[Any]:
    return [
        packet
        for packet in simulation.packets
        if packet.packet_type is PacketType.SIGNAL
        and packet.payload_as(SignalPayload).signal is Signal.QUERY
        and packet.metadata
        and "stale" in packet.metadata
    ]


def retract(simulation: Simulation, agent: str, target: Packet) -> Packet:
    sent, verdict = simulation.send(agent, RetractionPayload(target_packet_id=target.packet_id, reason="r"))
    assert verdict.refusal is None, verdict.refusal
    return sent


def test_everything_that_rests_on_it_is_stale_once_and_its_owners_are_told(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    ground, _ = simulation.send("red-1", model(), ORCHESTRATOR, parent=start)
    digest = ground.payload_as(ArtifactPayload).artifact_hash
    by_parent, _ = simulation.send("red-1", evaluation(0.5), parent=ground)
    by_hash, _ = simulation.send("blue-1", claim("a"), proof_bundle=ProofBundle(evidence_refs=(digest,)))
    named = f"packet:{by_hash.packet_id}"
    by_packet, _ = simulation.send("sentinel", claim("b"), proof_bundle=ProofBundle(evidence_refs=(named,)))
    apart, _ = simulation.send("blue-1", claim("c"), parent=start)
    retraction = retract(simulation, "red-1", ground)
    why = {"because": str(ground.packet_id), "retraction": str(retraction.packet_id)}
    assert marks_of(simulation) == dict.fromkeys((by_parent.packet_id, by_hash.packet_id, by_packet.packet_id), why)
    told = {one.recipients[0].agent_id: one.metadata["stale"] for one in queries_of(simulation)}
    assert {agent: list(one["packets"]) for agent, one in told.items()} == {
        "red-1": [str(by_parent.packet_id)],
        "blue-1": [str(by_hash.packet_id)],
        "sentinel": [str(by_packet.packet_id)],
    }
    assert {one.trace.parent_packet_id for one in queries_of(simulation)} == {retraction.packet_id}
    assert not simulation.session.identities[apart.packet_id].stale
    # Once is enough: what is stale stays so, whatever else is taken back.
    retract(simulation, "blue-1", by_hash)
    assert set(marks_of(simulation)) == {by_parent.packet_id, by_hash.packet_id, by_packet.packet_id}


def test_what_comes_later_and_rests_on_it_is_stale_from_the_beginning(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    ground, _ = simulation.send("red-1", claim("a"), parent=start)
    retraction = retract(simulation, "red-1", ground)
    late, verdict = simulation.send("blue-1", claim("b"), parent=ground)
    later, _ = simulation.send("blue-1", claim("c"), parent=late)
    assert verdict.refusal is None, "stale is no refusal"
    assert marks_of(simulation) == {
        late.packet_id: {"because": str(ground.packet_id)},
        later.packet_id: {"because": str(late.packet_id)},
    }
    assert [one.recipients[0].agent_id for one in queries_of(simulation)] == ["blue-1", "blue-1"]
    assert not simulation.session.identities[retraction.packet_id].stale, "what takes back rests on nothing"


@pytest.mark.parametrize("comes_first", [True, False])
def test_what_stands_in_its_place_is_not_stale(simulation: Simulation, comes_first: bool) -> None:
    start = simulation.start()
    research(simulation, start)
    ground, _ = simulation.send("red-1", model(), ORCHESTRATOR, parent=start)
    digest = ground.payload_as(ArtifactPayload).artifact_hash
    before, _ = simulation.send("blue-1", claim("a"), proof_bundle=ProofBundle(evidence_refs=(digest,)))
    named = new_packet_id()

    def replace() -> Any:
        return simulation.send("red-1", model(), ORCHESTRATOR, parent=ground, packet_id=named)[0]

    replacement = replace() if comes_first else None
    payload = RetractionPayload(target_packet_id=ground.packet_id, reason="r", replacement_packet_id=named)
    retraction, verdict = simulation.send("red-1", payload)
    assert verdict.refusal is None
    replacement = replacement or replace()
    assert replacement.packet_id == named and replacement.payload.artifact_hash == digest, "the same bytes"
    after, _ = simulation.send("blue-1", claim("b"), proof_bundle=ProofBundle(evidence_refs=(digest,)))
    child, _ = simulation.send("blue-1", evaluation(0.5), parent=replacement)
    assert marks_of(simulation) == {
        before.packet_id: {"because": str(ground.packet_id), "retraction": str(retraction.packet_id)}
    }
    # It stands by itself from now on, and falls like any other.
    retract(simulation, "red-1", replacement)
    late, _ = simulation.send("blue-1", claim("c"), proof_bundle=ProofBundle(evidence_refs=(digest,)))
    assert set(marks_of(simulation)) == {one.packet_id for one in (before, after, child, late)}


def test_a_held_transfer_that_rests_on_it_is_stale_when_it_goes_through(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=13)
    research(simulation, start)
    for _ in range(11):
        generation(simulation, start, 0.9, 0.2)
    ground, _ = simulation.send("red-1", evaluation(0.5), parent=start)
    retract(simulation, "red-1", ground)
    held, verdict = simulation.send("red-1", transfer(0.9, 0.1), "blue-1", parent=ground, lineage=lineage())
    assert (verdict.kind, marks_of(simulation)) == ("held", {}), "it was not admitted yet"
    generation(simulation, start, 0.9, 0.2)
    (ruling,) = [one for one in simulation.packets if one.packet_type is PacketType.ARBITRATION]
    assert marks_of(simulation) == {
        held.packet_id: {"because": str(ground.packet_id)},
        ruling.packet_id: {"because": str(held.packet_id)},
    }


def test_a_retraction_after_the_end_marks_and_moves_nothing(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    ground, _ = simulation.send("red-1", claim("a"), parent=start)
    resting, _ = simulation.send("blue-1", claim("b"), parent=ground)
    simulation.session.document.halt_reason = "by hand"
    simulation.pass_time(seconds=11)
    assert simulation.session.state == "HALTED"
    steps = simulation.session.step
    retract(simulation, "red-1", ground)
    assert set(marks_of(simulation)) == {resting.packet_id}
    assert (simulation.session.state, simulation.session.step) == ("HALTED", steps)


@pytest.mark.parametrize(
    ("kinds", "ended"),
    [
        (((ReceiptKind.REJECT,), (ReceiptKind.REJECT,)), "REJECTED_POLICY"),
        (((ReceiptKind.EXPIRED,), (ReceiptKind.EXPIRED,)), "EXPIRED"),
        (((ReceiptKind.REJECT,), (ReceiptKind.EXPIRED,)), "EXPIRED"),
        (((ReceiptKind.REJECT,), None), "ARCHIVED"),
        (((ReceiptKind.REJECT,), (ReceiptKind.DELIVERY_ACK,)), "DELIVERED"),
        (((ReceiptKind.DELIVERY_ACK,), (ReceiptKind.DEAD_LETTERED,)), "DEAD_LETTERED"),
    ],
)
def test_a_retraction_says_where_its_target_stood(simulation: Simulation, kinds: Any, ended: str) -> None:
    start = simulation.start()
    research(simulation, start)
    target, _ = simulation.send("red-1", claim("a"), ("sentinel", "librarian"), parent=start)
    for agent, said in zip(("sentinel", "librarian"), kinds, strict=True):
        simulation.receipts(target, agent, 1, said)
    retract(simulation, "red-1", target)
    hops = [hop for effects in simulation.effects for hop in effects.hops if hop.to_state == "RETRACTED"]
    assert [(hop.packet_id, hop.from_state) for hop in hops] == [(target.packet_id, ended)]


def test_an_owner_is_told_no_more_names_than_fit(simulation: Simulation) -> None:
    start = simulation.start()
    research(simulation, start)
    rules = load_contract().retraction
    ground, _ = simulation.send("red-1", claim("a"), parent=start)
    for at in range(rules.named_packets + 3):
        simulation.send("blue-1", claim(f"b{at}"), parent=ground)
    retract(simulation, "red-1", ground)
    (query,) = queries_of(simulation)
    assert query.metadata["stale"]["count"] == rules.named_packets + 3
    assert len(query.metadata["stale"]["packets"]) == rules.named_packets
