"""The options of a run become its sizes, and the command that repeats it."""

from pathlib import Path

import pytest

from apc_automl.run.form import BUDGET_SECONDS, RunForm, task_of
from apc_cli.errors import InputUnusable


def test_a_run_of_fixed_generations_is_not_cut_by_the_default_budget() -> None:
    assert RunForm(None, None).search_seconds == BUDGET_SECONDS
    assert RunForm(None, None, generations=3).search_seconds > BUDGET_SECONDS
    assert RunForm(None, None, generations=3, budget_seconds=5).search_seconds == 5


def test_a_task_is_the_table_and_its_target(tmp_path: Path) -> None:
    """Lineage compares runs of one task: the same bytes and target, whatever the file is called."""
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n")
    (tmp_path / "c.csv").write_text("x,y\n1,3\n")
    assert task_of(tmp_path / "a.csv", "y") == task_of(tmp_path / "b.csv", "y")
    assert (
        len({task_of(tmp_path / "a.csv", "y"), task_of(tmp_path / "c.csv", "y"), task_of(tmp_path / "a.csv", "x")}) == 3
    )
    with pytest.raises(InputUnusable, match="No such file"):
        task_of(tmp_path / "none.csv", "y")


def test_the_command_names_what_was_given() -> None:
    form = RunForm(Path("my table.csv"), "the target", seed=3)
    assert form.command("--generations", "2") == (
        "automl run --data 'my table.csv' --target 'the target' --seed 3 --generations 2 --no-priors"
    )
    assert "--no-priors" not in form.command(used_priors=True)
