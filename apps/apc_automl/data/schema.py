"""What the columns of a table mean; light to import, only training processes load pandas."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict


class ProblemKind(StrEnum):
    """What is to be learned."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"


class ColumnKind(StrEnum):
    """How a feature column is treated."""

    NUMERIC = "numeric"
    CATEGORICAL = "categorical"


class Column(BaseModel):
    """A feature column; `categories` = how many different texts it has (0 for a numeric one)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    kind: ColumnKind
    categories: int = 0
    has_missing: bool = False
    source: str | None = None
    """The column of the user's table that it is made from; None = the one of its name."""
    part: str | None = None
    """What of the source: `month` and others of a date, `word …` of a text; None = the value itself."""
    date_format: str | None = None


class Schema(BaseModel):
    """What the columns of a table mean; travels beside its slices as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: str
    problem: ProblemKind
    label_type: Literal["whole number", "text", "number"]
    classes: tuple[int | str, ...] = ()
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    def names(self, kind: ColumnKind) -> list[str]:
        """Return the feature columns of one kind, in the table's order."""
        return [column.name for column in self.columns if column.kind is kind]

    @property
    def feature_count(self) -> int:
        """How many numbers a row becomes once its categories are spelled out."""
        return sum(max(1, column.categories) for column in self.columns)
