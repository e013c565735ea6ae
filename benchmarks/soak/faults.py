"""Which fault comes when, from the seed alone."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

LONGEST_PAUSE = 3.0
"""Times the mean."""


class Act(StrEnum):
    """What is done to a target."""

    KILL = "SIGKILL"
    FREEZE = "SIGSTOP"
    TERM = "SIGTERM"
    KILL_ALL = "SIGKILL of all"


@dataclass(frozen=True, slots=True)
class Fault:
    """Done to `target` after `pause` seconds, and mended `hold` seconds later; what ends is started again at once."""

    pause: float
    act: Act
    target: str
    hold: float


def faults(
    seed: int,
    lane: str,
    targets: Sequence[str],
    weights: Mapping[Act, float],
    mean_pause: float,
    hold: tuple[float, float],
) -> Iterator[Fault]:
    """Yield the faults of a lane, one after the other, without end: the same for the same arguments."""
    chance = random.Random(f"{seed}/{lane}")
    acts, shares = list(weights), list(weights.values())
    while True:
        yield Fault(
            min(chance.expovariate(1 / mean_pause), LONGEST_PAUSE * mean_pause),
            chance.choices(acts, shares)[0],
            chance.choice(targets),
            chance.uniform(*hold),
        )
