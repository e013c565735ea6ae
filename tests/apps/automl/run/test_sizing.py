"""The sizes of a search follow from the time that one training takes and from the search time."""

from dataclasses import replace
from pathlib import Path

import pytest

from apc_automl.data.default_data import DEFAULT_TARGET
from apc_automl.run.form import GENERATIONS, LEAST_ROWS, MOST_GENERATIONS, RunForm
from apc_automl.run.sizing import LEAST_GENERATIONS, choose_sizes, fit_to_budget, generation_seconds
from apc_automl.training.material import Prepared
from apc_automl.training.workbench import Workbench
from apc_bus.settings import AutomlSettings


def test_a_quick_table_gets_all_generations_and_a_second_round() -> None:
    sizes = choose_sizes(0.5, 120, 400, 24)
    assert (sizes.generations, sizes.rounds, sizes.rows) == (24, 2, 400)


def test_a_slower_table_gets_fewer_generations_and_one_round() -> None:
    sizes = choose_sizes(5, 120, 400, 24)
    assert (sizes.generations, sizes.rounds, sizes.rows) == (19, 1, 400)
    assert "at most 1 round of 19 generations with 3 models each; a generation takes about 5.0 s" in sizes.words


def test_a_large_table_gets_fewer_rows_before_it_gets_too_few_generations() -> None:
    sizes = choose_sizes(40, 120, 20_000, 24)
    assert LEAST_ROWS < sizes.rows < 20_000
    assert sizes.generations == LEAST_GENERATIONS
    small = choose_sizes(40, 120, 900, 24)
    assert (small.generations, small.rows) == (1, 900), "a small table is not made smaller"
    fixed = choose_sizes(40, 120, 20_000, 24, may_shrink=False)
    assert (fixed.generations, fixed.rows) == (1, 20_000)


@pytest.mark.parametrize("seconds", [0.41, 1, 3, 10, 60, 1000])
def test_sizes_stay_within_their_bounds(seconds: float) -> None:
    for search in (1, 20, 120, 3600):
        sizes = choose_sizes(seconds, search, 30_000, 100)
        assert 1 <= sizes.generations <= 100 and 1 <= sizes.rounds <= 2
        assert LEAST_ROWS <= sizes.rows <= 30_000


def test_more_time_never_makes_a_search_smaller() -> None:
    found = [choose_sizes(8, search, 10_000, 100) for search in range(5, 2000, 5)]
    assert [one.rows for one in found] == sorted(one.rows for one in found)
    largest = [one.generations for one in found if one.rows == 10_000]
    assert largest == sorted(largest)


def test_a_generation_waits_for_its_slowest_swarm_or_for_a_free_process() -> None:
    fits = {"linear": [0.1], "trees": [1.0, 2.0], "neighbours": [0.2]}
    assert generation_seconds(fits, 3) == pytest.approx(6 * 1.5 + 0.4)
    assert generation_seconds(fits, 1) == pytest.approx(6 * 1.8 + 0.4)


async def test_the_settings_get_what_fits_and_keep_what_the_user_fixed(
    prepared: Prepared, default_table: Path, workbench: Workbench
) -> None:
    settings = AutomlSettings(data=default_table, target=DEFAULT_TARGET, maximum_rows=6000)
    form = RunForm(default_table, DEFAULT_TARGET, budget_seconds=100_000)
    fitted, sizes = await fit_to_budget(settings, form, prepared, workbench, 2)
    assert fitted.generations == sizes.generations == MOST_GENERATIONS > GENERATIONS
    assert (fitted.maximum_rounds, fitted.maximum_rows) == (2, 6000)
    assert fitted.budget_seconds <= 100_000
    fixed = replace(form, rounds=1, maximum_rows=300, budget_seconds=1)
    fitted, _ = await fit_to_budget(settings, fixed, prepared, workbench, 2)
    assert (fitted.maximum_rounds, fitted.maximum_rows) == (1, 6000)
    assert fitted.generations < GENERATIONS
