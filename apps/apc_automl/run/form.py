"""What the user asked for, checked, and the run that it becomes."""

import hashlib
import secrets
import shlex
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from apc_automl.data.table_schema import NOTHING_TOLD, TableOptions
from apc_automl.settings import AutomlSettings
from apc_bus.folders import make_private_folder
from apc_contracts.errors import InputUnusable

DEFAULT_TARGET = "diagnosis"
"""Of the table that is used when none is named."""
BUDGET_SECONDS = 120
FIXED_BUDGET_SECONDS = 3600
GENERATIONS = 24
"""At most, within the default budget."""
MOST_GENERATIONS = 100
"""At most, within a budget that the user has chosen."""
ROUNDS = 2
SEED = 7
MORE_TIME = 4
"""A run that goes on where another was refused gets so many times its search time."""
ROWS_A_SECOND = 125
LEAST_ROWS = 2000
"""Fewer rows than these are not looked at because of the time."""


@dataclass(frozen=True, slots=True)
class RunForm:
    """The options of `apc automl run`."""

    data: Path | None
    target: str | None
    generations: int | None = None
    seed: int | None = None
    budget_seconds: int | None = None
    out: Path | None = None
    priors: bool = True
    rounds: int | None = None
    convergence: int | None = None
    maximum_rows: int | None = None
    source: TableOptions = NOTHING_TOLD
    resume: str | None = None
    """A run over the same table, from whose best recipes this one goes on."""
    candidates: int | None = None

    @property
    def used_seed(self) -> int:
        """The seed of the run."""
        return SEED if self.seed is None else self.seed

    @property
    def row_limit(self) -> int:
        """How many rows are used at most."""
        return self.maximum_rows or max(LEAST_ROWS, ROWS_A_SECOND * self.search_seconds)

    @property
    def search_seconds(self) -> int:
        """The search time; a run of fixed generations is not cut by the default budget."""
        if self.budget_seconds is not None:
            return self.budget_seconds
        return BUDGET_SECONDS if self.generations is None else FIXED_BUDGET_SECONDS

    def command(self, *sizes: str, used_priors: bool = False) -> str:
        """Return `apc automl run` with these sizes, as typed at a shell."""
        words = ["--seed", str(self.used_seed), *sizes]
        if self.resume is not None:
            words += ["--resume", self.resume]
        elif not used_priors:
            words.append("--no-priors")
        return self._typed(words)

    def going_on(self, run_id: str) -> str:
        """Return `apc automl run` with more time, from the best recipes of this run, as typed at a shell."""
        seconds = MORE_TIME * (self.budget_seconds or BUDGET_SECONDS)
        return self._typed(["--resume", run_id, "--budget-seconds", str(seconds)])

    def _typed(self, options: list[str]) -> str:
        table = {"--data": self.data, "--target": self.target}
        words = [word for name, value in table.items() if value is not None for word in (name, str(value))]
        return shlex.join(["automl", "run", *words, *options, *self.source.words])

    def settings(self, data_dir: Path) -> AutomlSettings:
        """Return the run as the roles know it, its ids fixed once; the sample table is written when none is named.

        Raises:
            TableInvalid: no --target; names the columns of the table.
            InputUnusable: the table cannot be read, or the libraries for training are not installed.
        """
        if self.resume is not None and not self.priors:
            raise InputUnusable("--resume begins with what that run found: leave out --no-priors")
        if find_spec("sklearn") is None or find_spec("pandas") is None:
            raise InputUnusable("`apc automl run` trains models: install apc-bus[server,embedded,automl]")
        data, target = self._table(data_dir)
        run_id = f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        return AutomlSettings(
            data=data.resolve(),
            target=target,
            generations=self.generations or GENERATIONS,
            candidates=self.candidates or 1,
            convergence=self.convergence,
            maximum_rounds=self.rounds or ROUNDS,
            maximum_rows=self.row_limit,
            seed=self.used_seed,
            budget_seconds=self.search_seconds,
            priors=self.priors,
            session_id=run_id,
            run_id=run_id,
            task_id=task_of(data, target, self.source),
            **asdict(self.source),
        )

    def _table(self, data_dir: Path) -> tuple[Path, str]:
        if self.data is not None:
            return self.data, self.target or self._ask_for_target(self.data)
        return self.sample(data_dir), self.target or DEFAULT_TARGET

    def _ask_for_target(self, data: Path) -> str:
        from apc_automl.data.source import read_source
        from apc_automl.data.table import find_column

        return find_column(data, None, list(read_source(data, self.source).frame.columns))

    @staticmethod
    def sample(data_dir: Path) -> Path:
        """Return the sample table; it is written when it is not there."""
        return write_default_table(data_dir / "samples")


def task_of(data: Path, target: str, options: TableOptions = NOTHING_TOLD) -> str:
    """Return a task_id from the bytes of the table, how they are read, and the target: lineage compares like with like.

    Raises:
        InputUnusable: the file cannot be read.
    """
    try:
        with data.open("rb") as table:
            digest = hashlib.file_digest(table, "sha256")
    except OSError as error:
        raise InputUnusable(f"--data {data}: {error.strerror}") from error
    digest.update("/".join(["", target, *options.words]).encode())
    return f"model-search-{digest.hexdigest()[:12]}"


def environment_of(settings: AutomlSettings) -> dict[str, str]:
    """Return the settings as the environment of a process that runs one of the roles."""
    values = settings.model_dump(mode="json", exclude_none=True)
    return {f"APC_AUTOML_{name.upper()}": str(value) for name, value in values.items()}


def write_default_table(folder: Path) -> Path:
    """Write `breast-cancer.csv` (569 rows, 30 numeric columns, two classes) unless the folder has it."""
    from sklearn.datasets import load_breast_cancer

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
