"""The search: deterministic, inside its space, and never twice the same method while others are left."""

import pytest

from apc_automl.data.table_schema import Schema
from apc_automl.training.material import Prepared
from apc_automl.training.recipes import SWARMS, Recipe, axes_of, families_of
from apc_automl.training.search import Imported, Place, Trial, next_recipe, next_recipes


@pytest.fixture(scope="module")
def schema(prepared: Prepared) -> Schema:
    return Schema.model_validate_json(prepared.schema)


def search(swarm: str, schema: Schema, generations: int, seed: int = 7) -> list[Trial]:
    trials: list[Trial] = []
    for generation in range(generations):
        place = Place(seed=seed, swarm=swarm, round=1, generation=generation)
        recipe = next_recipe(place, schema, trials, [])
        trials.append(Trial(recipe=recipe, outcome=(int(recipe.method[:6], 16) % 1000) / 1000))
    return trials


@pytest.mark.parametrize("swarm", SWARMS)
def test_same_seed_same_search_and_no_method_twice(swarm: str, schema: Schema) -> None:
    first, again = search(swarm, schema, 24), search(swarm, schema, 24)
    assert [trial.recipe for trial in first] == [trial.recipe for trial in again]
    assert len({trial.recipe.method for trial in first}) == 24
    assert [trial.recipe for trial in first] != [trial.recipe for trial in search(swarm, schema, 24, seed=8)]


@pytest.mark.parametrize("swarm", SWARMS)
def test_a_swarm_stays_with_its_own_families_in_discovery(swarm: str, schema: Schema) -> None:
    families = families_of(swarm, schema.problem)
    trials = search(swarm, schema, 24)
    assert {trial.recipe.family for trial in trials} == set(families)
    assert [trial.recipe.family for trial in trials[: len(families)]] == families


def test_settings_that_cannot_matter_are_left_alone(schema: Schema) -> None:
    for trial in search("linear", schema, 24):
        assert trial.recipe.preprocessing["missing"] == "median"
        assert trial.recipe.preprocessing["rare_category_share"] == 0.01


def test_an_import_is_tuned_once_then_the_best_goes_on(schema: Schema) -> None:
    trials = search("linear", schema, 12)
    imported = Imported(recipe=search("trees", schema, 5)[4].recipe, score=0.9)
    place = Place(seed=7, swarm="linear", round=1, generation=13)
    recipe = next_recipe(place, schema, trials, [imported])
    assert recipe.family == imported.recipe.family
    assert recipe.parents == (imported.recipe.hash,)
    assert recipe.ancestor_swarms == ("trees", "linear")
    changed = [name for name, value in recipe.parameters.items() if imported.recipe.parameters[name] != value]
    changed += [name for name, value in recipe.preprocessing.items() if imported.recipe.preprocessing[name] != value]
    assert len(changed) == 1
    after = [*trials, Trial(recipe=recipe, outcome=0.0)]
    assert next_recipe(place.model_copy(update={"generation": 14}), schema, after, [imported]).family != recipe.family


def test_nothing_new_is_drawn_while_converging(schema: Schema) -> None:
    trials = search("linear", schema, 2)
    best = max(trials, key=lambda trial: trial.outcome)
    for generation in range(22, 30):
        place = Place(seed=7, swarm="linear", round=1, generation=generation, converging=True)
        assert next_recipe(place, schema, trials, []).parents == (best.recipe.hash,)


def test_what_was_falsified_is_not_built_upon(schema: Schema) -> None:
    sound, false = search("linear", schema, 2)
    sound, false = (
        sound.model_copy(update={"outcome": 0.1}),
        false.model_copy(update={"outcome": 1.0, "is_falsified": True}),
    )
    place = Place(seed=7, swarm="linear", round=1, generation=22, converging=True)
    assert next_recipe(place, schema, [sound, false], []).parents == (sound.recipe.hash,)


def test_a_recipe_is_its_canonical_bytes(schema: Schema) -> None:
    for trial in search("neighbours", schema, 6):
        assert Recipe.read(trial.recipe.canonical()) == trial.recipe
        assert set(axes_of(trial.recipe.family, schema)) == {
            *(("preprocessing", name) for name in trial.recipe.preprocessing),
            *(("parameters", name) for name in trial.recipe.parameters),
        }


def test_the_methods_of_one_generation_differ_and_begin_with_the_usual_ones(schema: Schema) -> None:
    place = Place(seed=7, swarm="trees", round=1, generation=0)
    found = next_recipes(place, schema, [], [], [], 8)
    families = families_of("trees", schema.problem)
    assert found[0] == next_recipe(place, schema, [], [])
    assert [recipe.family for recipe in found[: len(families)]] == families
    assert len({recipe.method for recipe in found}) == 8
    assert found == next_recipes(place, schema, [], [], [], 8)
    later = next_recipes(
        place.model_copy(update={"generation": 1}), schema, [Trial(recipe=one, outcome=0.1) for one in found], [], [], 8
    )
    assert not {recipe.method for recipe in later} & {recipe.method for recipe in found}


def test_a_space_that_is_used_up_gives_fewer_methods(schema: Schema) -> None:
    place = Place(seed=7, swarm="linear", round=1, generation=0)
    found = next_recipes(place, schema, [], [], [], 250)
    assert 8 < len(found) == len({recipe.method for recipe in found}) < 250
