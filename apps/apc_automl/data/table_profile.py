"""What makes two tables alike: a few numbers that travel in the research briefs, and the distance between them."""

import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from apc_automl.data.table_schema import ProblemKind

FACTOR = 10.0
"""Two counts that differ by this factor, or by more, are as different as counts can be."""
INCOMPARABLE = math.inf


class TableProfile(BaseModel):
    """The features that the distance reads. Shares are in 0..1."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    problem: ProblemKind
    rows: int = Field(ge=0)
    numeric_columns: int = Field(ge=0)
    """With the dates."""
    categorical_columns: int = Field(ge=0)
    """With the texts."""
    missing_share: float = Field(ge=0, le=1)
    """Of all feature cells."""
    classes: int = Field(ge=0)
    """0 for a regression."""
    spread: float = Field(ge=0, le=1)
    """Classification: entropy of the classes over that of equal ones. Regression: deviation over range."""

    @classmethod
    def of(cls, profile: Mapping[str, Any]) -> Self:
        """Return the profile from the result of `profile_table`."""
        numeric = profile["numeric_columns"] + profile["date_columns"]
        categorical = profile["categorical_columns"] + profile["text_columns"]
        columns = numeric + categorical
        target = profile["target_summary"]
        is_regression = profile["problem"] == ProblemKind.REGRESSION
        return cls(
            problem=profile["problem"],
            rows=profile["rows"],
            numeric_columns=numeric,
            categorical_columns=categorical,
            missing_share=_rounded(sum(profile["missing_share"].values()) / max(1, columns)),
            classes=0 if is_regression else len(target),
            spread=_rounded(_deviation(target) if is_regression else _evenness(list(target.values()))),
        )

    @property
    def expression(self) -> str:
        """As it stands in a brief; `read` takes it."""
        return self.model_dump_json()

    @classmethod
    def read(cls, expression: str) -> Self:
        """Return the inverse of `expression`. Raises ValueError for anything else."""
        return cls.model_validate_json(expression)


def distance(one: TableProfile, other: TableProfile) -> float:
    """Return the distance of two tables: 0 for equal profiles, up to 1; infinite for different problems.

    The mean of six differences: rows, numeric columns, categorical columns and classes by the logarithm of their ratio
    (a factor of ten or more is 1), missing share and spread by their difference.
    """
    if one.problem is not other.problem:
        return INCOMPARABLE
    differences = (
        _ratio(one.rows, other.rows),
        _ratio(one.numeric_columns, other.numeric_columns),
        _ratio(one.categorical_columns, other.categorical_columns),
        _ratio(one.classes, other.classes),
        abs(one.missing_share - other.missing_share),
        abs(one.spread - other.spread),
    )
    return sum(differences) / len(differences)


def _ratio(one: int, other: int) -> float:
    return min(1.0, abs(math.log(1 + one) - math.log(1 + other)) / math.log(FACTOR))


def _evenness(shares: list[float]) -> float:
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    return min(1.0, entropy / math.log(len(shares))) if len(shares) > 1 else 0.0


def _deviation(target: Mapping[str, float]) -> float:
    width = target["highest"] - target["lowest"]
    return min(1.0, target["deviation"] / width) if width > 0 else 0.0


def _rounded(share: float) -> float:
    return round(min(1.0, max(0.0, share)), 4)
