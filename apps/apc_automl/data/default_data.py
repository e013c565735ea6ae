"""The table that is used when the user names none: one that scikit-learn carries, written at first use."""

from pathlib import Path

from sklearn.datasets import load_breast_cancer

from apc_bus.folders import make_private_folder

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
