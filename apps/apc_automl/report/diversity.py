"""How different the swarms' methods are: what throttled transfers are meant to keep up."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

from apc_automl.training.recipes import Recipe


def recipe_distance(one: Recipe, other: Recipe) -> float:
    """Return 0 for the same method, up to 1 for methods that share nothing.

    Half of it is the family: the same or another one. The other half is the share of settings, over those that either
    recipe has, that differ or that only one of them has.
    """
    mine, others = _settings(one), _settings(other)
    names = mine.keys() | others.keys()
    absent = object()
    differing = sum(mine.get(name, absent) != others.get(name, absent) for name in names)
    return 0.5 * (one.family != other.family) + 0.5 * (differing / len(names) if names else 0.0)


def diversity(recipes: Sequence[Recipe]) -> float:
    """Return the mean distance between the recipes of one generation, 0..1; 0 for fewer than two."""
    pairs = list(combinations(recipes, 2))
    return fmean(recipe_distance(one, other) for one, other in pairs) if pairs else 0.0


def diversity_by_generation(tried: Mapping[int, Mapping[str, Recipe]]) -> dict[int, float]:
    """Map generation to diversity; `tried` maps generation to swarm to its recipe."""
    return {generation: diversity(list(tried[generation].values())) for generation in sorted(tried)}


def _settings(recipe: Recipe) -> dict[tuple[str, str], object]:
    return {
        (part, name): value for part in ("preprocessing", "parameters") for name, value in getattr(recipe, part).items()
    }
