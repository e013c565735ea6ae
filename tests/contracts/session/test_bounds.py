"""No input makes a session's document, or a packet of the orchestrator, too large or unreadable."""

from typing import Any

from tests.contracts.session.conftest import Simulate, Simulation

from apc_contracts import Packet, RetractionPayload, SignalPayload, load_contract
from apc_contracts.payloads.by_type import ArbitrationPayload, ArtifactPayload
from apc_contracts.payloads.session_signals import SessionSpec, SwarmSpec
from apc_contracts.session.advance import advance
from apc_contracts.session.document import decode_document
from apc_contracts.session.emissions import sync
from apc_contracts.session.movement import ReceiptsInput
from apc_contracts.vocabulary import PacketType, Signal
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage

from .path.way import brief, evaluation, generation, lineage, model, research, to_arbitration, to_validation, transfer


def test_usage_beyond_all_numbers_is_still_a_number(simulation: Simulation) -> None:
    start = simulation.start()
    simulation.acknowledge()
    for _ in range(3):
        packet, _ = simulation.send("librarian", brief(), "red-1", parent=start, keys=("a",))
        receipt = Receipt(
            packet_id=packet.packet_id,
            session_id="s-1",
            recipient="red-1",
            kind=ReceiptKind.OUTCOME,
            attempt=1,
            usage=Usage(tokens=2**53 - 1, cost=1e308),
            at=simulation.now,
        )
        advance(simulation.session, ReceiptsInput((receipt,), simulation.now), simulation.contract)
    document = simulation.session.document
    assert decode_document(document.encode()) == document


def test_keys_and_tasks_do_not_fill_the_document(simulation: Simulation) -> None:
    start = simulation.start()
    for number in range(60):
        keys = tuple(f"{number}-{place}-{'k' * 200}" for place in range(32))
        simulation.send("librarian", brief(f"keys-{number}"), "red-1", parent=start, keys=keys)
    assert simulation.session.symbolic_key_is_known(f"59-31-{'k' * 200}"), "what was said last is not new"
    assert not simulation.session.symbolic_key_is_known(f"0-0-{'k' * 200}"), "what was said long ago is forgotten"
    for number in range(1100):
        simulation.send("librarian", brief(f"task-{number}"), "red-1", parent=start)
    assert len(simulation.session.document.encode()) < 200_000


def test_a_long_uri_does_not_travel_into_the_protocol(simulation: Simulation) -> None:
    start = to_arbitration(simulation)
    simulation.pass_time(seconds=3)
    simulation.acknowledge()
    uri = "file:///" + "x" * 250_000
    long = model().model_copy(update={"artifact_uri": uri})
    artifact, _ = simulation.send("red-1", long, "sentinel", parent=start)
    simulation.send("red-1", evaluation(0.8), "sentinel", parent=artifact)
    simulation.acknowledge()
    simulation.send("sentinel", evaluation(0.75), parent=artifact)
    assert simulation.session.state == "PROMOTION"
    protocol = simulation.packets[-1]
    assert protocol.packet_type is PacketType.ARTIFACT
    payload = protocol.payload_as(ArtifactPayload)
    assert payload.artifact_uri == payload.artifact_hash


def test_a_flood_of_transfers_is_arbitrated_in_parts(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=13)
    research(simulation, start)
    for _ in range(11):
        generation(simulation, start, 0.9, 0.2)
    for number in range(900):
        simulation.send("red-1", transfer(0.9 - number / 10_000, 0.1), "blue-1", parent=start, lineage=lineage())
    generation(simulation, start, 0.9, 0.2)
    parts = [one for one in simulation.packets if one.packet_type is PacketType.ARBITRATION]
    assert [len(part.payload_as(ArbitrationPayload).candidates) for part in parts] == [401, 401, 101]
    assert all(len(seal(part).body) < 200_000 for part in parts)
    ranks = sorted(rank for part in parts for rank in part.payload_as(ArbitrationPayload).scoring.values())
    assert ranks == [1.0, 2.0]


def test_an_operator_stops_a_later_round_under_an_old_parent(simulation: Simulation) -> None:
    start, artifact = to_validation(simulation)
    simulation.send("sentinel", evaluation(0.3), parent=artifact)
    assert simulation.session.round == 2
    simulation.send("librarian", SignalPayload(signal=Signal.STOP), parent=start)
    assert simulation.session.state == "HALTED"


def test_a_delivery_that_expires_does_not_bring_its_recipient_back(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=5)
    research(simulation, start)
    packet, _ = simulation.send("red-1", evaluation(0.5), "sentinel", parent=start)
    simulation.pass_time(seconds=11)
    assert "sentinel" in simulation.session.document.dead_agents
    simulation.receipts(packet, "sentinel", 1, (ReceiptKind.EXPIRED,))
    assert "sentinel" in simulation.session.document.dead_agents
    simulation.acknowledge("sentinel")
    assert "sentinel" not in simulation.session.document.dead_agents


def test_a_transfer_that_comes_after_the_last_barrier_is_judged_at_once(simulation: Simulation) -> None:
    to_arbitration_through_convergence(simulation)
    parent = next(one for one in simulation.packets if one.run_phase == "CONVERGENCE" and one.packet_type == "EVAL")

    def late(**fields: Any) -> Any:
        given = {"parent": parent, "lineage": lineage(), "run_phase": "CONVERGENCE"} | fields
        return simulation.send("red-1", transfer(0.99, 0.01), "blue-1", **given)[1]

    assert late().kind == "accepted"
    assert late().kind == "accepted"
    assert late().refusal.code == "THROTTLE_TOP_K"
    assert late(generation=21).refusal.code == "GENERATION_MISMATCH"
    assert not simulation.session.held


def to_arbitration_through_convergence(simulation: Simulation) -> Packet:
    """A TRANSFER accepted in generation 21 leads to CONTROLLED_CONVERGENCE, which has its own generations."""
    start: Packet = simulation.start(generation_limit=22)
    research(simulation, start)
    for _ in range(21):
        generation(simulation, start, 0.9, 0.2)
    simulation.send("red-1", transfer(0.9, 0.1), "blue-1", parent=start, lineage=lineage())
    for _ in range(2):
        generation(simulation, start, 0.9, 0.2)
    assert simulation.session.state == "ARBITRATION"
    return start


def test_retracting_what_is_held_takes_it_off_the_barrier(simulation: Simulation) -> None:
    start = simulation.start(generation_limit=13)
    research(simulation, start)
    for _ in range(11):
        generation(simulation, start, 0.9, 0.2)
    held, _ = simulation.send("red-1", transfer(0.9, 0.1), "blue-1", parent=start, lineage=lineage())
    simulation.send("red-1", RetractionPayload(target_packet_id=held.packet_id, reason="wrong"))
    generation(simulation, start, 0.9, 0.2)
    assert not simulation.session.document.protocols


def test_a_session_has_no_more_swarms_than_a_sync_has_room_for(simulate: Simulate) -> None:
    bound = load_contract().limits.swarms
    swarms = tuple(SwarmSpec(swarm_id=f"{number:064}", agents=(f"a{number:063}",)) for number in range(bound + 1))
    refused = simulate()
    _, verdict = refused.send("librarian", start_of(swarms))
    assert (verdict.refusal.code, verdict.refusal.path) == ("TOO_LARGE", "payload.session.swarms")
    assert "257 swarms, the limit is 256" in verdict.refusal.message
    simulation = simulate()
    simulation.send("librarian", start_of(swarms[:bound]))
    document = simulation.session.document
    document.best_outcomes = {swarm.swarm_id: 1 / 3 for swarm in swarms[:bound]}
    state = sync(simulation.session, document.start_packet_id, simulation.now, simulation.contract)
    assert len(seal(state).body) < 50_000


def start_of(swarms: tuple[SwarmSpec, ...]) -> SignalPayload:
    spec = SessionSpec(swarms=swarms, generation_limit=1, generation_deadline_ms=10_000, state_deadline_ms=100_000)
    return SignalPayload(signal=Signal.START, session=spec)
