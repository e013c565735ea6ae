"""Means of a few runs with their uncertainty."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval by Student's t; with fewer than two values the interval is the mean."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Return the mean and interval of independent runs. Raises ValueError without values."""
        from scipy.stats import t

        if not values:
            raise ValueError("an interval needs at least one value")
        mean = fmean(values)
        if len(values) < 2:
            return cls(mean, mean, mean, len(values))
        reach = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - reach, mean + reach, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"
