"""TRANSFERs while a session promotes, and the end of the commons."""

from tests.contracts.session.path.test_transfers import arbitrations, offer

from apc_contracts.vocabulary import TransferMode

from ..conftest import Simulation
from .way import evaluation, to_validation


def to_promotion(simulation: Simulation) -> None:
    """A promoted model whose SYNC nobody has handled yet: the commons stay open until then."""
    _, artifact = to_validation(simulation)
    simulation.send("sentinel", evaluation(0.8), parent=artifact)
    assert simulation.session.state == "PROMOTION"


def test_a_transfer_in_promotion_is_judged_on_arrival(simulation: Simulation) -> None:
    to_promotion(simulation)
    simulation.session.document.generation = 21
    said = []
    for number, (mode, top_k) in enumerate(
        (
            (TransferMode.SELECTIVE_IMPORT, 2),
            (TransferMode.COMMONS_SEED, 3),
            (TransferMode.COMMONS_SEED, 2),
            (TransferMode.COMMONS_SEED, 1),
            (TransferMode.WINNER_TO_LOSERS, 2),
            (TransferMode.WINNER_TO_LOSERS, 2),
        )
    ):
        made = offer(number, 0.9, top_k, mode=mode)
        _, verdict = simulation.send("red-1", made["payload"], "blue-1", lineage=made["lineage"], generation=21)
        said.append(verdict.refusal.code if verdict.refusal else verdict.kind)

    assert said == ["THROTTLE_MODE", "THROTTLE_TOP_K", "accepted", "THROTTLE_TOP_K", "accepted", "THROTTLE_TOP_K"]
    assert not arbitrations(simulation)


def test_the_commons_close_when_everything_is_handled(simulation: Simulation) -> None:
    to_promotion(simulation)
    simulation.session.document.generation = 21
    simulation.acknowledge("sentinel", "librarian", "red-1")
    made = offer(1, 0.9, mode=TransferMode.COMMONS_SEED)
    seed, _ = simulation.send("red-1", made["payload"], "blue-1", lineage=made["lineage"], generation=21)
    assert simulation.session.state == "PROMOTION"

    simulation.acknowledge()

    assert simulation.session.state == "CLOSED"
    ends = [hop.to_state for effects in simulation.effects for hop in effects.hops if hop.packet_id == seed.packet_id]
    assert ends[-1] == "ARCHIVED"


def test_the_commons_close_at_the_deadline_of_a_generation(simulation: Simulation) -> None:
    to_promotion(simulation)
    due = simulation.session.document.deadlines["generation"]

    simulation.pass_time(seconds=(due - simulation.now).total_seconds() - 1)
    assert simulation.session.state == "PROMOTION"
    simulation.pass_time(seconds=2)

    assert simulation.session.state == "CLOSED"


def test_the_smallest_top_k_binds_those_who_come_after_it(simulation: Simulation) -> None:
    to_promotion(simulation)
    simulation.session.document.generation = 21
    said = []
    for number, top_k in enumerate((1, 2)):
        made = offer(number, 0.9, top_k, mode=TransferMode.COMMONS_SEED)
        _, verdict = simulation.send("red-1", made["payload"], "blue-1", lineage=made["lineage"], generation=21)
        said.append(verdict.refusal.code if verdict.refusal else verdict.kind)

    assert said == ["accepted", "THROTTLE_TOP_K"]
