"""The options of a run become its sizes, and the command that repeats it."""

from pathlib import Path

from apc_automl.run.form import BUDGET_SECONDS, RunForm


def test_a_run_of_fixed_generations_is_not_cut_by_the_default_budget() -> None:
    assert RunForm(None, None).search_seconds == BUDGET_SECONDS
    assert RunForm(None, None, generations=3).search_seconds > BUDGET_SECONDS
    assert RunForm(None, None, generations=3, budget_seconds=5).search_seconds == 5


def test_the_command_names_what_was_given() -> None:
    form = RunForm(Path("my table.csv"), "the target", seed=3)
    assert form.command("--generations", "2") == (
        "automl run --data 'my table.csv' --target 'the target' --seed 3 --generations 2 --no-priors"
    )
    assert "--no-priors" not in form.command(used_priors=True)
