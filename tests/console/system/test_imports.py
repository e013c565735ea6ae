"""What a command needs is no more than its extra installs."""

import subprocess
import sys

import pytest

OPTIONAL = ("pydantic_ai", "sklearn", "opentelemetry.sdk", "matplotlib")


@pytest.mark.parametrize(
    "module", ["apc_client.in_process.client", "apc_console.system.teams", "apc_console.system.up"]
)
def test_a_team_runs_without_the_libraries_of_other_extras(module: str) -> None:
    code = f"import sys, {module}\nprint([name for name in {OPTIONAL} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
