"""The sizes of a search follow from the time that one training takes and from the search time."""

import math
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from apc_automl.run.form import DEFAULT_TARGET, GENERATIONS, LEAST_ROWS, MOST_GENERATIONS, RunForm
from apc_automl.run.sizing import (
    BETWEEN_SECONDS,
    COMPARING_GENERATIONS,
    LEAST_GENERATIONS,
    MOST_CANDIDATES,
    SPARE,
    Costs,
    choose_sizes,
    costs_of,
    fit_to_budget,
    search_time_left,
)
from apc_automl.settings import AutomlSettings
from apc_automl.training import measuring
from apc_automl.training.material import Prepared, Study
from apc_automl.training.search import default_recipe
from apc_automl.training.workbench import Workbench


def costs(generation: float) -> Costs:
    """A third of the training time for one more method that all swarms try, as measured."""
    return Costs(generation, (generation - BETWEEN_SECONDS) / 3)


def test_a_quick_table_gets_all_generations_a_second_round_and_many_methods() -> None:
    sizes = choose_sizes(costs(0.5), 120, 400, 24)
    assert (sizes.generations, sizes.candidates, sizes.rounds, sizes.rows) == (24, MOST_CANDIDATES, 2, 400)


def test_a_slower_table_gets_fewer_generations_of_several_methods_and_one_round() -> None:
    sizes = choose_sizes(costs(5), 120, 400, 24)
    assert (sizes.generations, sizes.candidates, sizes.rounds, sizes.rows) == (8, 9, 1, 400)
    assert "1 round of 8 generations with 3 models each, each the best of 9 methods; a generation" in sizes.words
    assert f"about {5 + 9 * 4.6 / 3:.1f} s" in sizes.words


def test_a_slow_table_or_a_busy_moment_costs_generations_before_the_comparison() -> None:
    sizes = choose_sizes(costs(20), 200, 400, 24)
    assert (sizes.generations, sizes.candidates) == (5, 2)
    assert "best of 2 methods" in sizes.words
    busy = [choose_sizes(costs(0.4 + 0.15 * slower), 20, 400, 24) for slower in range(1, 26)]
    assert all(one.candidates > 1 for one in busy)
    assert [one.generations for one in busy] == sorted((one.generations for one in busy), reverse=True)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_stall_while_trainings_are_timed_does_not_make_the_search_small(
    is_guarded: bool, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that stands still for 5 s, once: everything after it is as quick as ever."""
    stalls = count(0, 5)
    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + next(stalls))
    if not is_guarded:
        monkeypatch.setattr(measuring, "BUSY", math.inf)
    recipe = default_recipe("logistic", "linear").canonical()
    seconds = measuring.time_training(recipe, study)
    fits = {"linear": [0.02, seconds, 0.02], "trees": [0.05], "neighbours": [0.02]}
    sizes = choose_sizes(costs_of(fits, 2), 15, 400, MOST_GENERATIONS)
    if is_guarded:
        assert seconds < 5 and sizes.candidates > 1 and sizes.generations >= COMPARING_GENERATIONS
    else:
        assert seconds > 5 and (sizes.generations, sizes.candidates) == (2, 1)


@pytest.mark.parametrize(("measured_for", "left"), [(2, 18), (5, 15), (13, 15), (60, 15)])
def test_a_slow_measurement_leaves_time_to_search(measured_for: float, left: float) -> None:
    assert search_time_left(20, measured_for) == left
    assert search_time_left(1, measured_for) == 1


def test_where_not_even_one_generation_of_two_methods_fits_nothing_is_compared() -> None:
    sizes = choose_sizes(costs(40), 120, 400, 24)
    assert (sizes.generations, sizes.candidates) == (2, 1)
    assert "best of" not in sizes.words


def test_a_large_table_gets_fewer_rows_before_it_gets_too_few_generations() -> None:
    sizes = choose_sizes(costs(40), 120, 20_000, 24)
    assert LEAST_ROWS < sizes.rows < 20_000
    assert sizes.candidates > 1 and sizes.generations * sizes.candidates >= LEAST_GENERATIONS * SPARE
    small = choose_sizes(costs(40), 120, 900, 24)
    assert (small.generations, small.rows) == (2, 900), "a small table is not made smaller"
    fixed = choose_sizes(costs(40), 120, 20_000, 24, may_shrink=False)
    assert (fixed.generations, fixed.rows) == (2, 20_000)


@pytest.mark.parametrize("seconds", [0.41, 1, 3, 10, 60, 1000])
def test_sizes_stay_within_their_bounds_and_their_time(seconds: float) -> None:
    for search in (1, 20, 120, 3600):
        sizes = choose_sizes(costs(seconds), search, 30_000, 100)
        assert 1 <= sizes.generations <= 100 and 1 <= sizes.rounds <= 2
        assert 1 <= sizes.candidates <= MOST_CANDIDATES
        assert LEAST_ROWS <= sizes.rows <= 30_000
        whole = sizes.generations * sizes.rounds * sizes.generation_seconds
        assert whole <= SPARE * search + sizes.generation_seconds or (sizes.generations, sizes.candidates) == (2, 1)


def test_how_many_methods_are_tried_can_be_fixed() -> None:
    one = choose_sizes(costs(5), 120, 400, 24, candidates=1)
    assert (one.generations, one.candidates) == (24, 1)
    many = choose_sizes(costs(5), 120, 400, 24, candidates=10)
    assert many.candidates == 10 and many.generations < 24


def test_more_time_never_makes_a_search_smaller() -> None:
    found = [choose_sizes(costs(8), search, 10_000, 100) for search in range(5, 2000, 5)]
    assert [one.rows for one in found] == sorted(one.rows for one in found)
    tried = [one.generations * one.candidates * one.rounds for one in found if one.rows == 10_000]
    assert tried[-1] > tried[0] and min(tried) == tried[0]


def test_a_generation_waits_for_its_slowest_swarm_or_for_a_free_process() -> None:
    fits = {"linear": [0.1], "trees": [1.0, 2.0], "neighbours": [0.2]}
    assert costs_of(fits, 3).generation == pytest.approx(6 * 1.5 + 0.4)
    assert costs_of(fits, 1).generation == pytest.approx(6 * 1.8 + 0.4)
    assert costs_of(fits, 3).candidate == pytest.approx(2 * 0.6)


@pytest.mark.long
async def test_the_settings_get_what_fits_and_keep_what_the_user_fixed(
    prepared: Prepared, default_table: Path, workbench: Workbench
) -> None:
    settings = AutomlSettings(data=default_table, target=DEFAULT_TARGET, maximum_rows=6000)
    form = RunForm(default_table, DEFAULT_TARGET, budget_seconds=100_000)
    fitted, sizes = await fit_to_budget(settings, form, prepared, workbench, 2)
    assert fitted.generations == sizes.generations == MOST_GENERATIONS > GENERATIONS
    assert (fitted.maximum_rounds, fitted.maximum_rows) == (2, 6000)
    assert fitted.candidates == sizes.candidates == MOST_CANDIDATES
    assert fitted.budget_seconds <= 100_000
    fixed = replace(form, rounds=1, maximum_rows=300, budget_seconds=1)
    fitted, _ = await fit_to_budget(settings, fixed, prepared, workbench, 2)
    assert (fitted.maximum_rounds, fitted.maximum_rows) == (1, 6000)
    assert fitted.generations < GENERATIONS
