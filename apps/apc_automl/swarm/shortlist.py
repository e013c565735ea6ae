"""Which method a builder trains: the best by cross-validation of all that it has tried and not trained yet.

A generation costs more than the training: packets, gates, the sentinel. So a builder tries several methods in each,
by cross-validation over all rows that it may see, and trains one. The half that does worst on the first fold is not
tried further.
"""

import asyncio
from collections.abc import Sequence
from statistics import fmean

from apc_automl.data.table_schema import Schema
from apc_automl.swarm.notebook import Notebook, Tried
from apc_automl.training import work
from apc_automl.training.material import Study
from apc_automl.training.recipes import Recipe
from apc_automl.training.search import Place, next_recipe, next_recipes
from apc_automl.training.workbench import Workbench

FIRST_FOLD, OTHER_FOLDS = (0,), (1, 2, 3)


async def choose_method(
    notebook: Notebook, place: Place, schema: Schema, study: Study, workbench: Workbench, count: int
) -> Recipe:
    """Return the method of a generation.

    Args:
        count: how many are tried; with 1 the next one is taken as it is.
    """
    imports = notebook.usable_imports(place.round, place.generation)
    if count == 1:
        return next_recipe(place, schema, notebook.trials, imports, notebook.priors)
    recipes = next_recipes(place, schema, [one.trial for one in notebook.tried], imports, notebook.priors, count)
    notebook.tried += await _try(recipes, study, workbench)
    best = notebook.best_untrained()
    return best or next_recipe(place, schema, notebook.trials, imports, notebook.priors)


async def _try(recipes: Sequence[Recipe], study: Study, workbench: Workbench) -> list[Tried]:
    """Return the methods with their scores, in the order given; scores of one fold are no scores to rely on."""

    async def score(recipe: Recipe, folds: Sequence[int]) -> list[float]:
        return await workbench.run(work.score_folds, recipe.canonical(), study, folds)

    first = [scores[0] for scores in await asyncio.gather(*(score(one, FIRST_FOLD) for one in recipes))]
    ranked = sorted(range(len(recipes)), key=lambda number: (-first[number], number))
    going_on = sorted(ranked[: (len(recipes) + 1) // 2])
    others = await asyncio.gather(*(score(recipes[number], OTHER_FOLDS) for number in going_on))
    whole = {number: fmean([first[number], *scores]) for number, scores in zip(going_on, others, strict=True)}
    return [
        Tried(recipe=recipe, score=whole.get(number, first[number]), is_whole=number in whole)
        for number, recipe in enumerate(recipes)
    ]
