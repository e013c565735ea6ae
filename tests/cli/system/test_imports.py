"""What a command needs is no more than its extra installs."""

import subprocess
import sys

import pytest

OPTIONAL = ("pydantic_ai", "sklearn", "opentelemetry.sdk", "matplotlib")


@pytest.mark.parametrize("module", ["apc_client.connecting", "apc_cli.system.teams", "apc_cli.system.up"])
def test_a_team_runs_without_the_libraries_of_other_extras(module: str) -> None:
    assert imported_by(module, OPTIONAL) == "[]\n"


def test_the_web_console_is_served_without_a_language_model() -> None:
    assert imported_by("apc_web.app", OPTIONAL) == "[]\n"


def test_a_command_that_reads_the_log_starts_without_the_system() -> None:
    """It would start a third slower; `apc_log` shows that something is imported at all."""
    names = ("apc_orchestrator", "apc_client", "apc_agents", "apc_log")
    assert imported_by("apc_cli.connections", names) == "['apc_log']\n"


@pytest.mark.parametrize("arguments", [("--help",), ("worker", "--help"), ("packet", "--help"), ("worker", "json:no")])
def test_a_command_starts_without_the_libraries_of_the_server(arguments: tuple[str, ...]) -> None:
    """`typer` shows that something is imported at all."""
    names = ("fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "apc_orchestrator", "apc_client", "typer")
    code = (
        "import atexit, sys\nfrom apc_cli.commands import main\n"
        f"atexit.register(lambda: print([name for name in {names} if name in sys.modules]))\nmain({list(arguments)})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "['typer']"


def test_a_search_for_a_model_is_refused_before_its_libraries_are_imported() -> None:
    assert imported_by("apc_automl.run", ("sklearn", "skops", "pandas", "apc_agents")) == "['apc_agents']\n"


def imported_by(module: str, names: tuple[str, ...]) -> str:
    """Return which of these modules an import of `module` brings along, as a list that is printed."""
    code = f"import sys, {module}\nprint([name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout
