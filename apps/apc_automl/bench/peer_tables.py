"""Twelve tables that ship with packages, or come from a generator: what the swarm is compared with its peers on."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from apc_automl.data.generated import TARGET, Generator, write_samples
from apc_contracts.errors import InputUnusable

ROWS = 1000
"""Of each generated table."""
PACKAGES = ("statsmodels", "vega_datasets", "palmerpenguins")


@dataclass(frozen=True, slots=True)
class PeerTable:
    """A table, the package that carries it, and the file in it; without a file it is made by a function."""

    name: str
    target: str
    package: str = ""
    file: str = ""
    make: Callable[[], Any] | None = None

    def write(self, folder: Path, seed: int) -> Path:
        """Write the table as CSV. Raises InputUnusable when the package is not installed."""
        path = folder / f"{self.name}-{seed}.csv"
        if not path.exists():
            if self.package:
                self._frame().to_csv(path, index=False, lineterminator="\n")
            elif self.make is not None:
                self.make().to_csv(path, index=False, lineterminator="\n")
            else:
                [path] = write_samples(folder, Generator(self.name), seed, 1, ROWS)
        return path

    def _frame(self) -> Any:
        """Read the file without running the package: some of them load old libraries."""
        import pandas as pd

        found = find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            raise InputUnusable(f"table {self.name!r}: pip install {' '.join(PACKAGES)}; or name others with --table")
        path = Path(found.submodule_search_locations[0]) / self.file
        return pd.read_json(path) if path.suffix == ".json" else pd.read_csv(path)


def _carried(name: str) -> Callable[[], Any]:
    def load() -> Any:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")(as_frame=True)
        names = getattr(bunch, "target_names", None)
        labels = bunch.target if names is None or name == "digits" else bunch.target.map(dict(enumerate(names)))
        return bunch.data.assign(**{TARGET: labels})

    return load


PEER_TABLES = {
    table.name: table
    for table in (
        PeerTable("breast_cancer", TARGET, make=_carried("breast_cancer")),
        PeerTable("wine", TARGET, make=_carried("wine")),
        PeerTable("digits", TARGET, make=_carried("digits")),
        PeerTable("diabetes", TARGET, make=_carried("diabetes")),
        PeerTable("marriages", "rate_marriage", "statsmodels", "datasets/fair/fair.csv"),
        PeerTable("travel", "choice", "statsmodels", "datasets/modechoice/modechoice.csv"),
        PeerTable("doctor_visits", "mdvis", "statsmodels", "datasets/randhie/randhie.csv"),
        PeerTable("cars", "Miles_per_Gallon", "vega_datasets", "_data/cars.json"),
        PeerTable("weather", "weather", "vega_datasets", "_data/seattle-weather.csv"),
        PeerTable("penguins", "species", "palmerpenguins", "data/penguins.csv"),
        PeerTable("friedman", TARGET),
        PeerTable("clusters", TARGET),
    )
}
