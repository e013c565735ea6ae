"""How different the candidates of a generation were."""

from apc_log.queries.arbitrations import CandidateOrigin
from apc_web.decisions import Compared, diversity_of


def _compared(generation: int, run_id: str, swarm: str, protocol_id: str | None) -> Compared:
    return Compared(generation, run_id, CandidateOrigin(swarm, protocol_id))


def test_different_swarms_and_protocols_are_counted_by_run_and_averaged() -> None:
    first, second = diversity_of(
        [
            _compared(12, "run-1", "red", "p-1"),
            _compared(11, "run-1", "red", "p-1"),
            _compared(11, "run-1", "red", "p-2"),
            _compared(11, "run-1", "blue", "p-2"),
            _compared(11, "run-2", "red", None),
        ]
    )

    assert (first.generation, first.runs, first.candidates) == (11, 2, 4)
    assert (first.mean_swarms, first.mean_protocols) == (1.5, 1.0)
    assert (second.generation, second.mean_swarms, second.mean_protocols) == (12, 1.0, 1.0)


def test_no_candidates_have_no_diversity() -> None:
    assert diversity_of([]) == []
