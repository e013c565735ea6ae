"""A blocked protocol at a barrier, and what a barrier says about protocols."""

from typing import Any

from tests.contracts.session.conftest import Simulation

from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import read_packet, seal

from ..path.way import generation, lineage, research, transfer


def to_selective_transfer(simulation: Simulation) -> Any:
    start = simulation.start(generation_limit=20)
    research(simulation, start)
    for _ in range(11):
        generation(simulation, start, 0.8, 0.2)
    assert simulation.session.state == "SELECTIVE_TRANSFER"
    return start


def verdicts(simulation: Simulation) -> list[str | None]:
    return [
        final.refusal_code
        for effects in simulation.effects
        for final in effects.final_verdicts
        if final.packet.packet_type is PacketType.TRANSFER
    ]


def test_a_block_that_began_after_the_transfer_came_refuses_it_at_the_barrier(simulation: Simulation) -> None:
    start = to_selective_transfer(simulation)
    sent, verdict = simulation.send("red-1", transfer(1.0, 0.3), "blue-1", parent=start, lineage=lineage())
    assert verdict.kind == "held" and verdicts(simulation) == []

    simulation.decayed = frozenset({"protocol-red"})
    generation(simulation, start, 0.8, 0.2)

    assert simulation.denied == {sent.packet_id: "PROTOCOL_DECAYED"}
    assert verdicts(simulation) == ["PROTOCOL_DECAYED"]
    (record,) = [
        hop.metadata["facts"]
        for effects in simulation.effects
        for hop in effects.hops
        if hop.packet_id == sent.packet_id and hop.metadata
    ]
    again = judge_recorded(read_packet(seal(sent).body), record, simulation.contract)
    assert again.refusal is not None and again.refusal.code == "PROTOCOL_DECAYED"


def test_verdicts_of_barriers_feed_the_account(simulation: Simulation) -> None:
    start = to_selective_transfer(simulation)
    ledger = ProtocolLedger(simulation.contract.effectiveness)
    for score in (1.0, 0.3):
        simulation.send("red-1", transfer(score, 0.3), "blue-1", parent=start, lineage=lineage())
        generation(simulation, start, 0.8, 0.2)
    for effects in simulation.effects:
        for final in effects.final_verdicts:
            assert ledger.note(final.packet, final.refusal_code, simulation.now) == []

    tallies = {str(subject.scope): tally for subject, tally in ledger.tallies().items()}
    assert (tallies["protocol"].transfers, tallies["protocol"].accepted) == (2, 1)
    assert tallies["protocol"].scores.evals == 2 * 13
