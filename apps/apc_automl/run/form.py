"""What the user asked for, checked, and the run that it becomes."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from apc_bus.settings import AutomlSettings
from apc_console.errors import InputUnusable


@dataclass(frozen=True, slots=True)
class RunForm:
    """The options of `apc automl run`."""

    data: Path | None
    target: str | None
    generations: int
    seed: int
    budget_seconds: int
    out: Path | None
    priors: bool = True

    def settings(self, data_dir: Path) -> AutomlSettings:
        """Return the run as the roles know it, its ids fixed once; the sample table is written when none is named.

        Raises:
            InputUnusable: no --target, the table cannot be read, or the libraries for training are not installed.
        """
        if find_spec("sklearn") is None or find_spec("pandas") is None:
            raise InputUnusable("`apc automl run` trains models: install apc-bus[server,embedded,automl]")
        data, target = self._table(data_dir)
        run_id = f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        return AutomlSettings(
            data=data.resolve(),
            target=target,
            generations=self.generations,
            seed=self.seed,
            budget_seconds=self.budget_seconds,
            priors=self.priors,
            session_id=run_id,
            run_id=run_id,
            task_id=task_of(data, target),
        )

    def _table(self, data_dir: Path) -> tuple[Path, str]:
        if self.data is not None:
            if self.target is None:
                raise InputUnusable(f"which column of {self.data} shall be predicted? Name it with --target")
            return self.data, self.target
        from apc_automl.data.default_data import DEFAULT_TARGET, write_default_table

        return write_default_table(data_dir / "samples"), self.target or DEFAULT_TARGET


def task_of(data: Path, target: str) -> str:
    """Name the task after what is to be learned: the bytes of the table and the target, so that lineage compares like
    with like.

    Raises:
        InputUnusable: the file cannot be read.
    """
    try:
        with data.open("rb") as table:
            digest = hashlib.file_digest(table, "sha256")
    except OSError as error:
        raise InputUnusable(f"--data {data}: {error.strerror}") from error
    digest.update(f"/{target}".encode())
    return f"model-search-{digest.hexdigest()[:12]}"


def environment_of(settings: AutomlSettings) -> dict[str, str]:
    """Return the settings as the environment of a process that runs one of the roles."""
    values = settings.model_dump(mode="json", exclude_none=True)
    return {f"APC_AUTOML_{name.upper()}": str(value) for name, value in values.items()}
