"""The figures of a run: a table for the reader, `build/bench.json` for the next run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement.

    `limit` is what it is compared with: a raw limit of the same run, or a fixed number of
    docs/explanation/performance.md. `bar` is the ratio to it that must be reached; for times, which should be small,
    the ratio that must not be passed.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    bar: float | None = None
    is_time: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """value / limit."""
        return self.value / self.limit if self.limit else None

    @property
    def is_met(self) -> bool | None:
        """Whether the bar is reached; None without one."""
        if self.bar is None or self.ratio is None:
            return None
        return self.ratio <= self.bar if self.is_time else self.ratio >= self.bar

    @property
    def document(self) -> dict[str, float | str | None]:
        """The entry in bench.json."""
        return {"value": self.value, "unit": self.unit, "limit": self.limit, "ratio": self.ratio}


@dataclass(slots=True)
class Figures:
    """All figures of a run, in the order in which they were measured."""

    found: list[Figure] = field(default_factory=list)

    def add(self, *figures: Figure) -> None:
        """Take figures in and tell the reader that they are there."""
        for figure in figures:
            self.found.append(figure)
            ratio = "" if figure.ratio is None else f"  ratio {figure.ratio:.2f}"
            print(f"  {figure.name}: {_number(figure.value)} {figure.unit}{ratio}", flush=True)

    def write(self, path: Path) -> None:
        """Write {name: {value, unit, limit, ratio}} as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        documents = {figure.name: figure.document for figure in self.found}
        path.write_bytes(orjson.dumps(documents, option=orjson.OPT_INDENT_2) + b"\n")

    def print(self) -> None:
        """Print the table, bars included."""
        table = Table("figure", "value", "unit", "limit", "ratio", "bar", "", "note", title="apc-bus benchmarks")
        for figure in self.found:
            table.add_row(*_cells(figure))
        Console(width=150).print(table)

    @property
    def missed(self) -> Sequence[Figure]:
        """Figures below their bar."""
        return [figure for figure in self.found if figure.is_met is False]


def _cells(figure: Figure) -> tuple[str, ...]:
    sign = "≤" if figure.is_time else "≥"
    verdict = {None: "", True: "met", False: "BELOW THE BAR"}[figure.is_met]
    return (
        figure.name,
        _number(figure.value),
        figure.unit,
        "" if figure.limit is None else _number(figure.limit),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.bar is None else f"{sign} {figure.bar:g}",
        verdict,
        figure.note,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
