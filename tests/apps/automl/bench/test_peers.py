"""The comparison with peers outside the protocol: its tables, its random search, its ranks."""

from pathlib import Path

import pandas as pd
import pytest

from apc_automl.bench import peers
from apc_automl.bench.outsiders import judge_baseline, judge_plain, judge_recipe, search_at_random
from apc_automl.bench.peers import (
    PEER_TABLES,
    PLAIN,
    RANDOM,
    SWARM,
    Comparison,
    FinishedComparisons,
    PeerTable,
    measure_peers,
    summarise,
)
from apc_automl.training.material import Blob, Prepared, Study
from apc_cli.errors import InputUnusable


def compared(table: str, seed: int, swarm: float, chance: float, plain: float) -> Comparison:
    losses = {SWARM: swarm, RANDOM: chance, PLAIN: plain}
    return Comparison(table=table, seed=seed, seconds=20, losses=losses, generations=4, candidates=6, drawn=40)


def test_there_are_twelve_tables() -> None:
    assert len(PEER_TABLES) == 12


@pytest.mark.parametrize("name", ["wine", "diabetes", "friedman"])
def test_a_table_is_written_once_with_its_target(name: str, tmp_path: Path) -> None:
    table = PEER_TABLES[name]
    frame = pd.read_csv(table.write(tmp_path, 1))
    assert table.target in frame.columns
    assert len(frame) > 100
    (tmp_path / f"{name}-1.csv").write_text("kept")
    assert table.write(tmp_path, 1).read_text() == "kept" or name == "friedman"


def test_a_table_of_a_package_is_its_file(tmp_path: Path) -> None:
    """Whatever package: here one that is installed."""
    table = PeerTable("versions", "Name", "sklearn", "datasets/data/iris.csv")
    assert len(pd.read_csv(table.write(tmp_path, 1))) == 150


def test_a_package_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda _: None)
    with pytest.raises(InputUnusable, match="pip install statsmodels vega_datasets palmerpenguins"):
        PEER_TABLES["penguins"].write(tmp_path, 1)


def test_equal_losses_share_their_rank() -> None:
    assert compared("a", 1, 0.5, 0.5, 0.9).ranks == {SWARM: 1.5, RANDOM: 1.5, PLAIN: 3.0}
    assert compared("a", 1, 0.14098, 0.2, 0.140979517).ranks == {SWARM: 1.5, RANDOM: 3.0, PLAIN: 1.5}


def test_intervals_are_over_tables_and_not_over_seeds() -> None:
    found = [
        compared("a", 1, 0.1, 0.2, 0.3),
        compared("a", 2, 0.2, 0.1, 0.3),
        compared("b", 1, 0.1, 0.2, 0.3),
        compared("b", 2, 0.1, 0.2, 0.3),
    ]
    figures = {row["figure"]: row["value"] for row in summarise(found)}
    assert figures[f"mean rank, {SWARM}"]["mean"] == pytest.approx((1.5 + 1.0) / 2)
    assert figures[f"mean rank, {SWARM}"]["count"] == 2
    assert figures[f"{SWARM} behind {RANDOM}"]["mean"] == pytest.approx((0 - 1) / 2)
    assert figures[f"{SWARM} behind {PLAIN}"]["mean"] == pytest.approx((-1.5 - 2) / 2)


def test_a_random_search_finds_more_than_nothing(study: Study, prepared: Prepared) -> None:
    untouched = Blob.of(prepared.untouched[0])
    found = search_at_random(study, 3.0, 1)
    assert found is not None and found.tried >= 1
    baseline = judge_baseline(study, untouched)
    assert judge_recipe(found.recipe, study, untouched) < baseline
    assert judge_plain(study, untouched) < baseline
    assert search_at_random(study, 0.0, 1) is None


async def test_what_the_file_of_results_holds_is_not_measured_again(tmp_path: Path) -> None:
    kept = FinishedComparisons(tmp_path / "results.jsonl")
    assert kept.read(20) == {}
    for seed in (1, 11, 12):
        kept.add(compared("wine", seed, 0.1, 0.2, 0.3))
    found = await measure_peers(["wine"], range(11, 13), 20, print, tmp_path / "results.jsonl")
    assert [run["seed"] for run in found["runs"]] == [11, 12]
    assert found["summary"][0]["value"]["mean"] == 1.0
    assert kept.read(30) == {}, "searches of another time are other results"


@pytest.mark.parametrize("line", ["{", "{}", '{"table": "wine"}', "\x00"])
def test_a_file_that_is_none_of_ours_is_refused_with_its_line(line: str, tmp_path: Path) -> None:
    kept = FinishedComparisons(tmp_path / "results.jsonl")
    kept.add(compared("wine", 1, 0.1, 0.2, 0.3))
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(InputUnusable, match="line 2: this is no comparison"):
        kept.read(20)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="--results"):
        FinishedComparisons(tmp_path / "no" / "results.jsonl").add(compared("wine", 1, 0.1, 0.2, 0.3))
