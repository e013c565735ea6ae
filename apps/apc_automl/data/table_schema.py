"""What the columns of a table mean and how they are written; light to import, only training processes load pandas."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

TEXT_NUMBERS = 20
"""A text becomes so many numbers."""
DATE_NUMBERS = 6
NO_TIME = "none"
"""As the column of the time: the rows are in none."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What the user says about the table; None = detected."""

    separator: str | None = None
    decimal: Literal[".", ","] | None = None
    encoding: str | None = None
    header: bool | None = None
    dates: Literal["day-first", "month-first"] | None = None
    group: str | None = None
    """Rows with the same value in this column stay together."""
    time: str | None = None
    """The rows are judged on the latest by this column; `NO_TIME`, where no column is called so: never in time."""

    @property
    def words(self) -> list[str]:
        """The options as typed."""
        words: list[str] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{one.name}")
            elif value is not None:
                words += [f"--{one.name}", value]
        return words


NOTHING_TOLD = TableOptions()


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
    known: tuple[str, ...] = ()
    """These texts."""
    has_missing: bool = False
    date_format: str | None = None
    """How the dates of a date column are written."""
    words: tuple[str, ...] = ()
    """The words of a text column that are counted."""
    decimal: str = ""
    """The decimal sign of a column of numbers; empty where all of them are whole and without thousands signs."""
    thousands: str = ""
    """The signs between its thousands."""
    unit: str = ""
    """What stands before or after its numbers, such as `%` or `$`, or what else they are: truths, times of day."""
    missing: tuple[str, ...] = ()
    """Texts in a column of numbers or dates that count as missing."""

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
    header: bool = True
    """The file has a line with the names of the columns."""
    decimal: str = ""
    """The decimal sign that the columns of numbers agree on; empty where none has one."""
    kept_together: str = ""
    """The column of the slices that numbers the groups of rows which are in one part; empty without groups."""
    time: str = ""
    """The rows are in the order of this column, and judged on the latest."""

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
