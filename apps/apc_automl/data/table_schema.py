"""What the columns of a table mean; light to import, only training processes load pandas."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

TEXT_NUMBERS = 20
"""A text becomes so many numbers."""
DATE_NUMBERS = 6


class ProblemKind(StrEnum):
    """What is to be learned."""

    CLASSIFICATION = "classification"
    REGRESSION = "regression"


class ColumnKind(StrEnum):
    """How a feature column is treated."""

    NUMERIC = "numeric"
    CATEGORICAL = "categorical"
    DATE = "date"
    TEXT = "text"


class Column(BaseModel):
    """A feature column of the user's table, under the name that it has there."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    kind: ColumnKind
    categories: int = 0
    """How many different texts a categorical column has; 0 for the others."""
    has_missing: bool = False
    date_format: str | None = None
    """How the dates of a date column are written."""
    words: tuple[str, ...] = ()
    """The words of a text column that are counted."""

    @property
    def numbers(self) -> int:
        """How many numbers a cell becomes for a model."""
        match self.kind:
            case ColumnKind.DATE:
                return DATE_NUMBERS
            case ColumnKind.TEXT:
                return min(TEXT_NUMBERS, len(self.words))
        return max(1, self.categories)


class Schema(BaseModel):
    """What the columns of a table mean; travels beside its slices as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    target: str
    problem: ProblemKind
    label_type: Literal["whole number", "text", "number"]
    classes: tuple[int | str, ...] = ()
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    def of_kind(self, kind: ColumnKind) -> list[Column]:
        """Return the feature columns of one kind, in the table's order."""
        return [column for column in self.columns if column.kind is kind]

    def names(self, kind: ColumnKind) -> list[str]:
        """Return the names of `of_kind`."""
        return [column.name for column in self.of_kind(kind)]

    @property
    def feature_count(self) -> int:
        """How many numbers a row becomes for a model."""
        return sum(column.numbers for column in self.columns)
