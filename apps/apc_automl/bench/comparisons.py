"""Comparisons with peers that are finished, in a file of JSON lines: a long measurement can be made in pieces."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from apc_automl.training.gates import DIGITS
from apc_contracts.errors import InputUnusable


class Comparison(BaseModel):
    """The losses of all three on the same untouched rows of one table and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: str
    seed: int
    seconds: int
    """For each search."""
    losses: Mapping[str, float]
    generations: int
    candidates: int
    """Methods that each swarm has compared in a generation."""
    drawn: int
    """Recipes that the random search has tried."""

    @property
    def ranks(self) -> dict[str, float]:
        """Return 1 for the smallest loss; equal ones share their places, in as many digits as a run logs."""
        from scipy.stats import rankdata

        losses = [round(loss, DIGITS) for loss in self.losses.values()]
        return dict(zip(self.losses, rankdata(losses).tolist(), strict=True))


class FinishedComparisons:
    """The comparisons in a file; without a file none is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def read(self, seconds: int) -> dict[tuple[str, int], Comparison]:
        """Return (table, seed) -> its comparison with searches of so many seconds.

        Raises:
            InputUnusable: a line is no comparison, or the file cannot be read.
        """
        if self._file is None or not self._file.exists():
            return {}
        found, number = {}, 0
        try:
            for line in self._file.read_text(encoding="utf-8").splitlines():
                number += 1
                one = Comparison.model_validate_json(line)
                if one.seconds == seconds:
                    found[one.table, one.seed] = one
        except (OSError, UnicodeDecodeError) as error:
            raise InputUnusable(f"--results {self._file}: {error}") from error
        except ValidationError as error:
            raise InputUnusable(f"--results {self._file}, line {number}: this is no comparison") from error
        return found

    def add(self, one: Comparison) -> None:
        """Append a comparison. Raises InputUnusable when the file cannot be written."""
        if self._file is None:
            return
        try:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(one.model_dump_json() + "\n")
        except OSError as error:
            raise InputUnusable(f"--results {self._file}: {error.strerror}") from error
