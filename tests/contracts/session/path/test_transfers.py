"""TRANSFERs in a session: held, judged together, ranked, recorded; whatever the order in which they came."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import permutations
from random import Random
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_contracts import Packet, TransferPayload, read_packet
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.contract.contract import Contract, contract_from_bytes, load_contract
from apc_contracts.packet import Lineage
from apc_contracts.payloads.by_type import ArbitrationPayload, TransferPolicy
from apc_contracts.payloads.session_signals import SwarmSpec
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, TransferMode
from apc_contracts.wire.parsing import seal

from ..conftest import REGISTRY, Simulation
from .way import generation, research

Offer = tuple[float, float, int | None, str]
"""sender_score, confidence, top_k, parent protocol."""


def offer(number: int, sender: float, top_k: int | None = 2, **changes: Any) -> dict[str, Any]:
    """Payload and lineage of a TRANSFER of protocol `p-<number>` from red to blue."""
    mode = changes.pop("mode", TransferMode.SELECTIVE_IMPORT)
    parents = changes.pop("parents", ())
    cross = changes.pop("cross_use_case", False)
    policy = {name: changes.pop(name) for name in ("min_generation", "threshold_multiplier") if name in changes}
    payload = TransferPayload(
        protocol_id=f"p-{number}",
        from_swarm="red",
        to_swarm="blue",
        sender_score=sender,
        receiver_score=changes.pop("receiver", 0.1),
        transfer_policy=TransferPolicy(mode=mode, top_k=top_k, **policy),
    )
    block = Lineage(
        protocol_id=f"p-{number}",
        parent_protocol_ids=parents,
        ancestor_swarms=("green",),
        cross_use_case=cross,
        transfer_mode=mode,
    )
    return {"payload": payload, "lineage": block, **changes}


def open_until(simulation: Simulation, number: int, **spec: Any) -> Packet:
    """Return a session whose generation `number` is open."""
    start = simulation.start(**{"generation_limit": number + 2} | spec)
    research(simulation, start)
    for _ in range(number):
        close(simulation, start)
    return start


def send(simulation: Simulation, start: Packet, made: dict[str, Any], **fields: Any) -> Packet:
    made = dict(made)
    payload = made.pop("payload")
    packet, verdict = simulation.send("red-1", payload, "blue-1", parent=start, **made, **fields)
    assert verdict.kind == "held", verdict.refusal
    return packet


def close(simulation: Simulation, start: Packet) -> None:
    """The barrier. Verified are red 1 and blue about 0.001: what the TRANSFERs declare lies between, and speaks."""
    generation(simulation, start, 0.999, 0.0)


def arbitrations(simulation: Simulation) -> list[Packet]:
    found = [packet for packet in simulation.packets if packet.packet_type is PacketType.ARBITRATION]
    return [packet for packet in found if packet.payload_as(ArbitrationPayload).arbitration_id.startswith("transfers-")]


@pytest.mark.parametrize(
    ("closing", "made", "code"),
    [
        (11, offer(1, 0.9), None),
        (11, offer(1, 0.9, receiver=0.75), None),
        (11, offer(1, 0.9, receiver=0.76), "THROTTLE_SCORE"),
        (11, offer(1, 0.9, receiver=0.5, threshold_multiplier=2.0), "THROTTLE_SCORE"),
        (11, offer(1, 0.9, receiver=0.4, threshold_multiplier=2.0), None),
        (11, offer(1, 0.9, receiver=0.76, threshold_multiplier=1.0), "THROTTLE_SCORE"),
        (11, offer(1, 0.9, None), "THROTTLE_TOP_K"),
        (11, offer(1, 0.9, 3), "THROTTLE_TOP_K"),
        (11, offer(1, 0.9, min_generation=12), "TRANSFER_WINDOW_CLOSED"),
        (11, offer(1, 0.9, min_generation=11), None),
        (11, offer(1, 0.9, mode=TransferMode.CROSS_USE_CASE), "THROTTLE_CROSS_USE_CASE"),
        (20, offer(1, 0.9, cross_use_case=True), "THROTTLE_CROSS_USE_CASE"),
        (21, offer(1, 0.9, cross_use_case=True), None),
        (21, offer(1, 0.9, receiver=0.76), "THROTTLE_SCORE"),
        (21, offer(1, 0.9, None), "THROTTLE_TOP_K"),
    ],
)
def test_each_rule_at_the_barrier(simulation: Simulation, closing: int, made: dict[str, Any], code: str | None) -> None:
    start = open_until(simulation, closing)
    packet = send(simulation, start, made)
    close(simulation, start)

    assert simulation.denied.get(packet.packet_id) == code


def test_verified_scores_rule_at_the_barrier(simulation: Simulation) -> None:
    start = open_until(simulation, 11)
    boast = send(simulation, start, offer(1, 1.0, receiver=0.0))
    generation(simulation, start, 0.0, 0.9999)  # now red is verified at 0.1, blue at 1
    (arbitration,) = arbitrations(simulation)

    assert simulation.denied[boast.packet_id] == "THROTTLE_SCORE"
    assert arbitration.payload_as(ArbitrationPayload).candidates[0].score_components["score_difference"] == 0


def test_the_arbitration_says_who_was_weighed_and_who_went(simulation: Simulation) -> None:
    start = open_until(simulation, 11)
    sent = [send(simulation, start, offer(number, score)) for number, score in enumerate((0.7, 0.9, 0.8))]
    bad = send(simulation, start, offer(9, 0.1, receiver=0.1))
    close(simulation, start)
    (packet,) = arbitrations(simulation)
    rows = {row.candidate_id: row for row in packet.payload_as(ArbitrationPayload).candidates}

    assert packet.sender.agent_id == ORCHESTRATOR
    assert list(rows) == [*(str(sent[place].packet_id) for place in (1, 2, 0)), str(bad.packet_id), "none"]
    assert packet.payload_as(ArbitrationPayload).winner_candidate_id == str(sent[1].packet_id)
    assert packet.payload_as(ArbitrationPayload).scoring == {
        f"selected:{sent[1].packet_id}": 1.0,
        f"selected:{sent[2].packet_id}": 2.0,
    }
    assert rows["none"].total_score == 0 and not rows["none"].packet_ref_ids
    best = rows[str(sent[1].packet_id)]
    assert best.packet_ref_ids == (sent[1].packet_id,)
    assert sum(best.score_components.values()) == pytest.approx(0.8 + 0.25 * 0.5)
    assert best.total_score == pytest.approx((0.8 + 0.25 * 0.5) / 1.3)
    assert rows[str(sent[0].packet_id)].risk_flags == ("THROTTLE_TOP_K",)
    assert rows[str(bad.packet_id)].risk_flags == ("THROTTLE_SCORE",)
    assert packet.lineage == sent[1].lineage


def test_when_nothing_goes_through_none_wins(simulation: Simulation) -> None:
    start = open_until(simulation, 11)
    bad = send(simulation, start, offer(1, 0.1))
    close(simulation, start)
    (packet,) = arbitrations(simulation)

    assert packet.payload_as(ArbitrationPayload).winner_candidate_id == "none"
    assert packet.payload_as(ArbitrationPayload).scoring == {}
    assert packet.lineage == bad.lineage


def test_no_transfer_no_arbitration(simulation: Simulation) -> None:
    start = open_until(simulation, 11)
    close(simulation, start)
    assert not arbitrations(simulation)
    late = send(simulation, start, offer(1, 0.9), expires_at=simulation.now + timedelta(seconds=1))
    simulation.pass_time(seconds=2)
    close(simulation, start)

    assert simulation.denied[late.packet_id] == "EXPIRED"
    assert not arbitrations(simulation)


def test_each_swarm_has_its_own_cap(simulation: Simulation) -> None:
    start = open_until(
        simulation,
        11,
        swarms=tuple(SwarmSpec(swarm_id=name, agents=(f"{name}-1",)) for name in ("red", "blue")),
        members=("sentinel", "judge", "librarian"),
    )
    sent = []
    for number, to in enumerate(("blue-1", "blue-1", "blue-1", "sentinel")):
        made = offer(number, 0.9)
        payload = made["payload"].model_copy(update={"to_swarm": REGISTRY[to].swarm_id})
        sent.append(simulation.send("red-1", payload, to, parent=start, lineage=made["lineage"])[0].packet_id)
    close(simulation, start)

    assert [simulation.denied.get(packet_id) for packet_id in sent].count("THROTTLE_TOP_K") == 1
    assert sent[3] not in simulation.denied


@pytest.mark.parametrize("to", ["sentinel", "red-1", ("blue-1", "sentinel")])
def test_another_name_does_not_pass_the_cap(simulation: Simulation, to: Any) -> None:
    start = open_until(simulation, 11)
    made = offer(1, 0.9)
    _, verdict = simulation.send("red-1", made["payload"], to, parent=start, lineage=made["lineage"])

    assert verdict.refusal.code == "UNROUTABLE"
    assert verdict.refusal.path == ("recipients[1]" if isinstance(to, tuple) else "recipients[0]")


def test_what_a_released_transfer_says_is_known(simulation: Simulation) -> None:
    start = open_until(simulation, 11)
    first, second = offer(1, 0.9, parents=("p-0",)), offer(2, 0.8, parents=("p-0",))
    send(simulation, start, first, keys=("fresh",))
    assert not simulation.session.symbolic_key_is_known("fresh")
    close(simulation, start)
    session = simulation.session
    assert session.symbolic_key_is_known("fresh") and session.protocol_is_known("p-0")
    payload = second["payload"]
    _, verdict = simulation.send("red-1", payload, "blue-1", parent=start, keys=("fresh",), lineage=second["lineage"])

    assert [warning.rule for warning in verdict.warnings if warning.path == "symbolic_keys"] == [
        "strengthens_language_evolution"
    ]


def test_a_transfer_accepted_in_generation_21_converges(simulation: Simulation) -> None:
    start = open_until(simulation, 21, generation_limit=23)
    bad = send(simulation, start, offer(1, 0.1))
    close(simulation, start)
    assert (simulation.session.state, simulation.session.generation) == ("SELECTIVE_TRANSFER", 22)
    assert bad.packet_id in simulation.denied
    send(simulation, start, offer(2, 0.9))
    close(simulation, start)

    assert simulation.session.state == "CONTROLLED_CONVERGENCE"
    assert simulation.events[-1] == "transfer_accepted"


def test_swarms_work_on_in_the_generations_of_convergence(simulation: Simulation) -> None:
    start = open_until(simulation, 11, generation_limit=11, convergence_generations=2)
    close(simulation, start)
    assert (simulation.session.state, simulation.session.generation) == ("CONTROLLED_CONVERGENCE", 12)
    accepted = send(simulation, start, offer(1, 0.9))
    close(simulation, start)
    assert accepted.packet_id not in simulation.denied
    assert (simulation.session.state, simulation.session.generation) == ("CONTROLLED_CONVERGENCE", 13)

    close(simulation, start)

    assert simulation.session.state == "ARBITRATION"


OFFERS = st.lists(
    st.tuples(
        st.sampled_from([0.05, 0.3, 0.9, 0.9, 0.95]),
        st.sampled_from([0.2, 0.5]),
        st.sampled_from([None, 1, 2, 2, 3]),
        st.sampled_from(["p-0", "p-1"]),
    ),
    min_size=2,
    max_size=4,
)


@given(OFFERS, st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_arrival_order_has_no_say(offers: Sequence[Offer], random: Random) -> None:
    orders = list(permutations(range(len(offers))))
    outcomes = [_barrier(offers, order) for order in random.sample(orders, min(4, len(orders)))]

    assert all(outcome == outcomes[0] for outcome in outcomes)


def _barrier(offers: Sequence[Offer], order: Sequence[int]) -> Any:
    """Return what a barrier leaves behind: refusals, the arbitration, the session."""
    simulation = Simulation(load_contract())
    simulation.start(generation_limit=13, packet_id=UUID(int=1, version=4))
    start = simulation.packets[0]
    research(simulation, start)
    for _ in range(11):
        close(simulation, start)
    for place in order:
        sender, confidence, top_k, parent = offers[place]
        made = offer(place, sender, top_k, parents=(parent,))
        packet_id = UUID(int=100 + place, version=4)
        packet = simulation.build("red-1", made["payload"], "blue-1", parent=start, lineage=made["lineage"])
        send_as = packet.model_copy(update={"packet_id": packet_id, "confidence": confidence})
        assert simulation.take(send_as).kind == "held"
    close(simulation, start)
    (arbitration,) = arbitrations(simulation)
    document = simulation.session.document
    return (
        simulation.denied,
        arbitration.payload,
        arbitration.lineage,
        document.protocols,
        document.round_state.accepted_transfers,
        document.symbolic_keys,
        [transition.event for transition in simulation.transitions],
    )


def test_rulings_are_recorded_as_they_were_judged(contract: Contract) -> None:
    """Two TRANSFERs of one protocol at one barrier: neither is judged, nor replayed, by what the other changes."""
    document = contract.file.model_dump(mode="json", by_alias=True, exclude_none=True)
    for check in document["drift_checks"]:
        if check["name"] == "supports_competition":
            check |= {"mode": "enforce", "guard": "protocol_share <= 0.67"}
    strict = contract_from_bytes(orjson.dumps(document))
    simulation = Simulation(strict)
    start = open_until(
        simulation,
        11,
        swarms=tuple(SwarmSpec(swarm_id=REGISTRY[name].swarm_id, agents=(name,)) for name in ("red-1", "blue-1")),
        generation_deadline_ms=1_000,
    )
    # A third swarm, that nobody has waited for: a share of two thirds is no monopoly.
    simulation.session.document.swarms["watch"] = []
    sent = []
    for number, to in enumerate(("blue-1", "sentinel")):
        made = offer(1, 0.9 - number / 10)
        payload = made["payload"].model_copy(update={"to_swarm": REGISTRY[to].swarm_id})
        sent.append(simulation.send("red-1", payload, to, parent=start, lineage=made["lineage"])[0])
    close(simulation, start)
    simulation.pass_time(seconds=2)
    hops = {
        hop.packet_id: hop.metadata
        for effects in simulation.effects
        for hop in effects.hops
        if hop.from_state == "SCHEMA_VALIDATED"
    }

    assert not simulation.denied
    for packet in sent:
        facts = (hops[packet.packet_id] or {})["facts"]
        assert facts["transfer"]["holders"] == []
        assert judge_recorded(read_packet(seal(packet).body), facts, strict).refusal is None
