"""Several methods are compared by cross-validation; the best that was not trained yet is trained."""

from dataclasses import replace

import pytest

from apc_automl.data.table_schema import Schema
from apc_automl.swarm.builder import choose_method
from apc_automl.swarm.notebook import Entry, Notebook
from apc_automl.training.material import Study
from apc_automl.training.measuring import FOLDS, score_folds
from apc_automl.training.recipes import Recipe
from apc_automl.training.search import Place, Trial, next_recipe
from apc_automl.training.workbench import Workbench

PLACE = Place(seed=7, swarm="linear", round=1, generation=0)


@pytest.fixture(scope="module")
def schema(study: Study) -> Schema:
    return Schema.model_validate_json(study.schema.data)


def trained(recipe: Recipe, name: str = "linear-r1-g0") -> Entry:
    return Entry(name=name, round=1, generation=0, trial=Trial(recipe=recipe, outcome=0.5), stability=1.0)


async def test_one_candidate_is_the_next_method_and_is_not_compared(
    study: Study, schema: Schema, workbench: Workbench
) -> None:
    notebook = Notebook()
    chosen = await choose_method(notebook, PLACE, schema, study, workbench, 1)
    assert chosen == next_recipe(PLACE, schema, [], [])
    assert notebook.tried == []


async def test_the_best_of_several_is_chosen_and_half_of_them_are_given_up(
    study: Study, schema: Schema, workbench: Workbench
) -> None:
    notebook, again = Notebook(), Notebook()
    chosen = await choose_method(notebook, PLACE, schema, study, workbench, 6)
    assert chosen == await choose_method(again, PLACE, schema, study, workbench, 6)
    assert notebook == again, "the same in every run"
    whole = [one for one in notebook.tried if one.is_whole]
    assert (len(notebook.tried), len(whole)) == (6, 3)
    assert chosen == max(whole, key=lambda one: one.score).recipe
    assert all(one.trial.is_falsified for one in notebook.tried if not one.is_whole), "nothing is built upon these"
    firsts = {one.recipe.method: score_folds(one.recipe.canonical(), study, (0,))[0] for one in notebook.tried}
    worst = min(firsts[one.recipe.method] for one in whole)
    assert all(one.score <= worst for one in notebook.tried if not one.is_whole)


async def test_what_was_trained_is_not_chosen_again_and_the_second_best_waits(
    study: Study, schema: Schema, workbench: Workbench
) -> None:
    notebook = Notebook()
    chosen = await choose_method(notebook, PLACE, schema, study, workbench, 6)
    notebook.entries.append(trained(chosen))
    second = notebook.best_untrained()
    assert second is not None and second.method != chosen.method
    later = await choose_method(notebook, PLACE.model_copy(update={"generation": 1}), schema, study, workbench, 2)
    assert later.method != chosen.method
    assert len(notebook.tried) == 8 == len({one.recipe.method for one in notebook.tried})


async def test_nothing_is_built_upon_a_method_that_was_falsified(
    study: Study, schema: Schema, workbench: Workbench
) -> None:
    notebook = Notebook()
    chosen = await choose_method(notebook, PLACE, schema, study, workbench, 4)
    notebook.entries.append(trained(chosen))
    assert not next(one for one in notebook.tried if one.recipe == chosen).trial.is_falsified
    notebook.falsify("linear-r1-g0")
    assert next(one for one in notebook.tried if one.recipe == chosen).trial.is_falsified


def test_methods_are_compared_on_train_and_held_out_rows_together(study: Study, schema: Schema) -> None:
    recipe = next_recipe(PLACE, schema, [], []).canonical()
    scores = score_folds(recipe, study, range(FOLDS))
    assert len(scores) == FOLDS and all(0 < score < 1 for score in scores)
    assert score_folds(recipe, study, (2,)) == [scores[2]]
    fewer = replace(study, held_out=study.train)
    assert score_folds(recipe, fewer, range(FOLDS)) != scores
