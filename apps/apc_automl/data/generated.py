"""Tables that nobody has to bring: the one used when none is named, and samples drawn from a generator."""

from enum import StrEnum
from pathlib import Path

from sklearn.datasets import load_breast_cancer

from apc_bus.folders import make_private_folder

TARGET = "target"


class Generator(StrEnum):
    """Where generated tables come from."""

    FRIEDMAN = "friedman"
    """A regression on ten columns of which five matter, with a product, a square and two lines (Friedman, Multivariate
    Adaptive Regression Splines, 1991): kinds of models differ much on it."""
    CLUSTERS = "clusters"
    """Two classes of three clusters each in twelve columns of which six matter: the usual settings are hard to beat."""


def write_samples(folder: Path, generator: Generator, seed: int, samples: int, rows: int) -> list[Path]:
    """Write disjoint samples of one draw as CSV with the target column `TARGET`.

    Args:
        seed: the same seed gives the same tables.
        samples: how many tables.
        rows: of each table.
    """
    import pandas as pd
    from sklearn.datasets import make_classification, make_friedman1

    if generator is Generator.FRIEDMAN:
        features, target = make_friedman1(n_samples=samples * rows, n_features=10, noise=1.0, random_state=seed)
        labels: list[float | str] = [round(float(value), 6) for value in target]
    else:
        features, target = make_classification(
            n_samples=samples * rows,
            n_features=12,
            n_informative=6,
            n_redundant=2,
            n_clusters_per_class=3,
            class_sep=1.2,
            flip_y=0.03,
            random_state=seed,
        )
        labels = [f"kind-{value}" for value in target]
    frame = pd.DataFrame(features, columns=[f"x{number}" for number in range(features.shape[1])]).round(6)
    frame[TARGET] = labels
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(samples):
        path = folder / f"{generator}-{seed}-{number}.csv"
        frame.iloc[number * rows : (number + 1) * rows].to_csv(path, index=False, lineterminator="\n")
        paths.append(path)
    return paths


DEFAULT_TARGET = "diagnosis"


def write_default_table(folder: Path) -> Path:
    """Write `breast-cancer.csv` (569 rows, 30 numeric columns, two classes) unless the folder has it."""
    path = folder / "breast-cancer.csv"
    if not path.exists():
        bunch = load_breast_cancer(as_frame=True)
        names = dict(enumerate(bunch.target_names))
        frame = bunch.data.assign(**{DEFAULT_TARGET: bunch.target.map(names)})
        make_private_folder(folder)
        draft = path.with_suffix(".draft")
        frame.to_csv(draft, index=False, lineterminator="\n")
        draft.replace(path)
    return path
