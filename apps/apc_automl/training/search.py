"""What to try next: a pure function of the seed, the place in the run, and what the swarm has learned.

Nothing here looks at a clock, at arrival order or at a process: a handler that runs again after a crash
chooses the same method, and so does the same run over another transport.
"""

import hashlib
import random
from collections.abc import Sequence

import rfc8785
from pydantic import BaseModel, ConfigDict

from apc_automl.data.table_schema import Schema
from apc_automl.training.recipes import FAMILIES, Recipe, Setting, axes_of, default_settings, families_of

EXPLORE_SHARE = 0.3
"""Of the generations after the defaults: how many draw a fresh method instead of tuning the best one."""
DRAWS = 60
STEP_DRAWS = 6
"""Of the draws for a tuned method: after this many failed attempts the walk gets one step longer."""


class Trial(BaseModel):
    """A method that was measured; `outcome` on held-out data."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    recipe: Recipe
    outcome: float
    is_falsified: bool = False
    """The sentinel could not reproduce it: it is never built upon."""


class Imported(BaseModel):
    """A recipe that came by TRANSFER, and the score that its sender declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    recipe: Recipe
    score: float


class Place(BaseModel):
    """Where in the run a method is wanted."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seed: int
    swarm: str
    round: int
    generation: int
    draw: int = 0
    """Which of the methods of this generation, from 0."""
    converging: bool = False
    """In CONVERGENCE nothing new is drawn: the best imported recipe is tuned, else the swarm's own best."""


def next_recipe(
    place: Place,
    schema: Schema,
    trials: Sequence[Trial],
    imports: Sequence[Imported],
    priors: Sequence[Recipe] = (),
) -> Recipe:
    """Return the method of one generation.

    None whose `method` was measured before, here or elsewhere, if others are left.

    A swarm begins with its priors, best first, then the usual settings of the families that have none.
    """
    generator = _generator(place)
    families = families_of(place.swarm, schema.problem)
    untried = [family for family in families if all(trial.recipe.family != family for trial in trials)]
    own = {trial.recipe.method for trial in trials}
    # What another swarm has measured is known as well as what this one has.
    tried = own | {imported.recipe.method for imported in imports}
    used = {parent for trial in trials for parent in trial.recipe.parents}
    unused = [
        imported for imported in imports if imported.recipe.hash not in used and imported.recipe.method not in own
    ]
    if unused:
        chosen = max(unused, key=lambda imported: (imported.score, imported.recipe.hash))
        return _tuned(chosen.recipe, place.swarm, schema, tried, generator)
    if not place.converging and untried:
        known = next((prior for prior in priors if prior.family in untried), None)
        return default_recipe(untried[0], place.swarm) if known is None else _fitted(known, place.swarm, schema)
    best = best_trial(trials)
    if best is None or (not place.converging and generator.random() < EXPLORE_SHARE):
        return drawn_recipe(families, place.swarm, schema, tried, generator)
    return _tuned(best.recipe, place.swarm, schema, tried, generator)


def next_recipes(
    place: Place,
    schema: Schema,
    trials: Sequence[Trial],
    imports: Sequence[Imported],
    priors: Sequence[Recipe],
    count: int,
) -> list[Recipe]:
    """Return the methods of one generation that are compared before one is trained; fewer where no others are left.

    Each is chosen as if those before it had been measured and were not worth building upon.
    """
    found: list[Recipe] = []
    known = {trial.recipe.method for trial in trials}
    for draw in range(count):
        seen = [*trials, *(Trial(recipe=one, outcome=0.0, is_falsified=True) for one in found)]
        recipe = next_recipe(place.model_copy(update={"draw": draw}), schema, seen, imports, priors)
        if recipe.method not in known:
            known.add(recipe.method)
            found.append(recipe)
    return found


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the highest outcome that was not falsified; the earliest of equals."""
    sound = [trial for trial in trials if not trial.is_falsified]
    return max(sound, key=lambda trial: trial.outcome, default=None)


def _generator(place: Place) -> random.Random:
    known = place.model_dump(exclude={"converging"} if place.draw else {"converging", "draw"})
    digest = hashlib.sha256(rfc8785.dumps(known)).digest()
    return random.Random(int.from_bytes(digest[:8]))


def default_recipe(family: str, swarm: str) -> Recipe:
    """Return a family with its usual settings."""
    space = FAMILIES[family]
    return Recipe(
        family=family,
        preprocessing=default_settings(space.preprocessing),
        parameters=default_settings(space.parameters),
        ancestor_swarms=(swarm,),
    )


def _fitted(prior: Recipe, swarm: str, schema: Schema) -> Recipe:
    """Return the prior as it is, or tuned from it where a setting is none of this table's options."""
    settings = {
        (part, name): value if (value := getattr(prior, part).get(name)) in options else options[0]
        for (part, name), options in axes_of(prior.family, schema).items()
    }
    fitted = _assemble(prior.family, settings, swarm, prior)
    return prior if fitted.method == prior.method else fitted


def drawn_recipe(
    families: Sequence[str], swarm: str, schema: Schema, tried: set[str], generator: random.Random
) -> Recipe:
    """Return a recipe with a family and settings drawn alike; one that is not in `tried`, if the draws find one."""
    for _ in range(DRAWS):
        family = generator.choice(families)
        settings = {axis: generator.choice(options) for axis, options in axes_of(family, schema).items()}
        recipe = _assemble(family, settings, swarm)
        if recipe.method not in tried:
            break
    return recipe


def _tuned(base: Recipe, swarm: str, schema: Schema, tried: set[str], generator: random.Random) -> Recipe:
    """Return the base with one setting moved to a neighbouring option; where all that is known, a longer walk away."""
    every = axes_of(base.family, schema)
    axes = {axis: options for axis, options in every.items() if len(options) > 1}
    for draw in range(DRAWS):
        settings = {(part, name): getattr(base, part)[name] for part, name in every}
        for _ in range(1 + draw // STEP_DRAWS):
            axis = generator.choice(sorted(axes))
            settings[axis] = _neighbour(axes[axis], settings[axis], generator)
        recipe = _assemble(base.family, settings, swarm, base)
        if recipe.method not in tried:
            break
    return recipe


def _neighbour(options: tuple[Setting, ...], value: Setting, generator: random.Random) -> Setting:
    at = options.index(value)
    return options[generator.choice([other for other in (at - 1, at + 1) if 0 <= other < len(options)])]


def _assemble(family: str, settings: dict[tuple[str, str], Setting], swarm: str, base: Recipe | None = None) -> Recipe:
    line = () if base is None else base.ancestor_swarms
    return Recipe(
        family=family,
        preprocessing={name: value for (part, name), value in settings.items() if part == "preprocessing"},
        parameters={name: value for (part, name), value in settings.items() if part == "parameters"},
        parents=() if base is None else (base.hash,),
        ancestor_swarms=line if line[-1:] == (swarm,) else (*line, swarm),
    )
