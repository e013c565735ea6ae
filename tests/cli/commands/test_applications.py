"""The commands of applications: found by entry point, and `apc` works without them."""

from importlib.metadata import EntryPoint

import pytest
import typer

from apc_automl.cli import app as automl
from apc_cli.commands.applications import GROUP, add_application, add_applications


@pytest.fixture
def app() -> typer.Typer:
    return typer.Typer()


def test_the_installed_application_adds_its_commands(app: typer.Typer) -> None:
    add_applications(app)
    assert {"automl": automl}.items() <= {group.name: group.typer_instance for group in app.registered_groups}.items()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:app", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:no_such_name", "AttributeError: "),
        ("json:dumps", "it is no typer.Typer but function"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_named_and_left_out(
    app: typer.Typer, capsys: pytest.CaptureFixture[str], value: str, reason: str
) -> None:
    add_application(app, EntryPoint("broken", value, GROUP))
    assert app.registered_groups == []
    said = capsys.readouterr()
    assert said.err.startswith(f"apc: no command `apc broken`: {value} cannot be used: {reason}")
    assert len(said.err.splitlines()) == 1
    assert said.out == ""
