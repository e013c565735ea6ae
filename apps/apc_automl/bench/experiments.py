"""`apc automl bench homogenization`: does throttling keep the swarms different? `priors`: is a second run better?"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from apc_automl.bench.reference_runs import (
    FIRST_SEED,
    ROWS,
    Generator,
    Interval,
    SwarmRun,
    bench_folder,
    run_settings,
    run_swarm_once,
    training_processes,
    write_samples,
)
from apc_automl.training.recipes import Recipe
from apc_cli.for_applications import echo
from apc_contracts.contract.contract import load_contract


@dataclass(frozen=True)
class Figures:
    """One run. Diversity is the mean over the generations in which both contracts allow transfers."""

    best_outcome: float
    validated_outcome: float | None
    diversity: float
    diversity_by_generation: dict[int, float]
    transfers_accepted: int


async def measure_homogenization(
    generator: Generator, seeds: int, generations: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Run the swarm with throttling on and off over seeds (each its own table) and compare: a JSON object."""
    from_generation = next(window.first_generation for window in load_contract().windows if window.is_open)
    found: dict[str, list[Figures]] = {"on": [], "off": []}
    with bench_folder() as folder, training_processes() as workbench:
        contracts = {"on": None, "off": write_unthrottled(folder / "unthrottled.json")}
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            (table,) = write_samples(folder, generator, seed, 1, ROWS)
            for throttling, contract in contracts.items():
                settings = run_settings(table, throttling, seed, generations, priors=False)
                run = await run_swarm_once(folder / f"{throttling}-{seed}", settings, workbench, contract)
                figures = _figures(run, from_generation)
                found[throttling].append(figures)
                tell(
                    f"seed {seed}, throttling {throttling}: outcome {figures.best_outcome:.4f}, "
                    f"diversity {figures.diversity:.4f}, {figures.transfers_accepted} transfers"
                )
    return {
        "table": generator.value,
        "seeds": seeds,
        "generations": generations,
        "from_generation": from_generation,
        "rows": ROWS,
        "runs": {name: [asdict(one) for one in runs] for name, runs in found.items()},
        "summary": [_compare(name, found["on"], found["off"]) for name in COMPARED],
    }


COMPARED: dict[str, Callable[[Figures], float | None]] = {
    "best outcome, held-out": lambda one: one.best_outcome,
    "outcome of the final model, untouched data": lambda one: one.validated_outcome,
    "diversity": lambda one: one.diversity,
    "transfers accepted": lambda one: float(one.transfers_accepted),
}


def _compare(name: str, on: Sequence[Figures], off: Sequence[Figures]) -> dict[str, Any]:
    """Return means with 95 % intervals, and the mean of the differences on - off, seed by seed."""
    pairs = [(COMPARED[name](one), COMPARED[name](other)) for one, other in zip(on, off, strict=True)]
    whole = [(one, other) for one, other in pairs if one is not None and other is not None]
    if not whole:
        return {"figure": name, "on": None, "off": None, "on - off": None}
    return {
        "figure": name,
        "on": asdict(Interval.of([one for one, _ in whole])),
        "off": asdict(Interval.of([other for _, other in whole])),
        "on - off": asdict(Interval.of([one - other for one, other in whole])),
    }


def _figures(run: SwarmRun, from_generation: int) -> Figures:
    by_generation = diversity_by_generation(run.recipes)
    late = [value for generation, value in by_generation.items() if generation >= from_generation]
    return Figures(
        run.best_outcome,
        run.validated_outcome,
        fmean(late) if late else 0.0,
        by_generation,
        sum(transfer.is_accepted for transfer in run.log.transfers),
    )


def tell_on_stderr(line: str) -> None:
    """Print progress on stderr."""
    echo(line, file=sys.stderr, flush=True)


def write_unthrottled(path: Path) -> Path:
    """Write the packaged contract, changed by data alone: transfers from generation 1, from the leader, without a
    cap. Raises ContractInvalid if that is no contract any more."""
    document = json.loads((files("apc_contracts") / "data/apc-1.0.json").read_bytes())
    document["name"] = "unthrottled"
    document["transfer_windows"] = [
        {"name": "open", "first_generation": 0, "is_open": True, "allows_cross_use_case": True}
    ]
    document["phases"]["REFINEMENT"]["transfer"]["guard"] = "sender_score > receiver_score"
    document["phases"]["CONVERGENCE"]["transfer"]["guard"] = "top_k <= 10.0"
    for edge in document["machines"]["inter_agent_coordination"]["edges"]:
        if edge["event"] == "generation_window_open":
            edge["guard"] = "generation >= 1.0"
    path.write_text(json.dumps(document, indent=1))
    load_contract(path)
    return path


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


@dataclass(frozen=True)
class Starts:
    """Mean outcome over the swarms, and the best one, of generation 0 of the second run: with priors and without."""

    mean_with: float
    mean_without: float
    best_with: float
    best_without: float


async def measure_priors(
    generator: Generator, seeds: int, generations: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Run, for each seed, a whole run on one sample and generation 0 on another; return a JSON object."""
    found: list[Starts] = []
    with bench_folder() as folder, training_processes() as workbench:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            first, second = write_samples(folder, generator, seed, 2, ROWS)
            data = folder / f"log-{seed}"

            await run_swarm_once(data, run_settings(first, "first", seed, generations, priors=False), workbench)
            second_run = run_settings(second, "knowing", seed, 1, priors=True)
            knowing = (await run_swarm_once(data, second_run, workbench)).outcomes[0].values()
            second_run = run_settings(second, "naive", seed, 1, priors=False)
            naive = (await run_swarm_once(data, second_run, workbench)).outcomes[0].values()
            starts = Starts(fmean(knowing), fmean(naive), max(knowing), max(naive))
            found.append(starts)
            tell(f"seed {seed}: mean {starts.mean_with:.4f} with priors, {starts.mean_without:.4f} without")
    return {
        "table": generator.value,
        "seeds": seeds,
        "generations": generations,
        "rows": ROWS,
        "runs": [asdict(one) for one in found],
        "summary": [
            _compare_starts("mean over the swarms", [(one.mean_with, one.mean_without) for one in found]),
            _compare_starts("best swarm", [(one.best_with, one.best_without) for one in found]),
        ],
    }


def _compare_starts(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "figure": f"outcome of generation 0, {name}",
        "with": asdict(Interval.of([one for one, _ in pairs])),
        "without": asdict(Interval.of([other for _, other in pairs])),
        "with - without": asdict(Interval.of([one - other for one, other in pairs])),
    }
