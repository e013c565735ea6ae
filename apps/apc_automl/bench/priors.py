"""`apc automl bench priors`: does a second run on a similar table start better for knowing the first?"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from apc_automl.bench.reference_runs import (
    FIRST_SEED,
    ROWS,
    Interval,
    bench_folder,
    run_settings,
    run_swarm_once,
    training_processes,
)
from apc_automl.data.generated import Generator, write_samples


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
            _compare("mean over the swarms", [(one.mean_with, one.mean_without) for one in found]),
            _compare("best swarm", [(one.best_with, one.best_without) for one in found]),
        ],
    }


def _compare(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    return {
        "figure": f"outcome of generation 0, {name}",
        "with": asdict(Interval.of([one for one, _ in pairs])),
        "without": asdict(Interval.of([other for _, other in pairs])),
        "with - without": asdict(Interval.of([one - other for one, other in pairs])),
    }
