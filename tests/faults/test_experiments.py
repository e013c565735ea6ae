"""The experiments of `apc automl bench`, with fewer runs than the figures in docs/research/governance.md."""

import pytest

from apc_automl.bench.experiments import measure_homogenization, measure_priors
from apc_automl.bench.peers import measure_peers
from apc_automl.bench.reference_runs import Generator

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


async def test_a_second_run_on_a_similar_table_starts_better() -> None:
    said: list[str] = []

    found = await measure_priors(Generator.FRIEDMAN, 2, 9, said.append)

    assert len(said) == 2
    for run in found["runs"]:
        assert run["mean_with"] > run["mean_without"]


async def test_open_windows_let_more_through_and_earlier() -> None:
    found = await measure_homogenization(Generator.FRIEDMAN, 2, 13, lambda _: None)

    for on, off in zip(found["runs"]["on"], found["runs"]["off"], strict=True):
        assert off["transfers_accepted"] > on["transfers_accepted"]
        assert set(on["diversity_by_generation"]) == set(range(13))
        # Until the first import can be used both do the same.
        for generation in range(3):
            assert on["diversity_by_generation"][generation] == off["diversity_by_generation"][generation]
    (diversity,) = [row for row in found["summary"] if row["figure"] == "diversity"]
    assert diversity["on - off"]["low"] <= diversity["on - off"]["mean"] <= diversity["on - off"]["high"]


async def test_the_swarm_and_its_peers_are_judged_on_the_same_rows() -> None:
    said: list[str] = []

    found = await measure_peers(["wine"], [1], 5, said.append)

    [run] = found["runs"]
    assert said[0].startswith("wine, seed 1: the swarm ")
    assert all(0 < loss < 1.2 for loss in run["losses"].values())
    assert sorted(run["ranks"]) == sorted(run["losses"])
    assert len(found["summary"]) == 5
