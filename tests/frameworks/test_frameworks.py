"""The handlers of docs/how-to/frameworks.md, with the frameworks themselves, fake models and no network.

Their versions of pydantic and openai exclude each other: each has a separate environment below
build/frameworks, made once.
"""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.docs.test_page_blocks import BEGINNING, blocks_of

from .fakes import FAKES, RUN, TOOL

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "frameworks"
PAGE = "docs/how-to/frameworks.md"
INSTALL_SECONDS = 900

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(INSTALL_SECONDS + 120)]


def environment(requirement: str) -> Path:
    """Return the interpreter of an environment with a framework and this package; made when there is none."""
    folder = BUILD / requirement.partition("==")[0]
    python, stamp = folder / "bin" / "python", folder / ".installed"
    if not stamp.exists() or stamp.read_text() not in ("", requirement):
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "--editable", str(ROOT), requirement], check=True, timeout=INSTALL_SECONDS)
        stamp.write_text(requirement)
    return python


@pytest.mark.parametrize("requirement", sorted(FAKES))
def test_a_handler_of_five_lines_awaits_a_framework_whose_tool_acts_once(requirement: str, tmp_path: Path) -> None:
    """Each fake model calls the tool twice with the same arguments, and then says what it was given."""
    framework, setup = FAKES[requirement]
    (block,) = [one for one in blocks_of(PAGE) if framework in one]
    assert 3 <= len(block.strip().splitlines()) <= 7
    script = tmp_path / "joined.py"
    script.write_text("\n\n".join((BEGINNING, TOOL, setup, block, RUN)))
    given = {name: value for name, value in os.environ.items() if not name.startswith(("APC_", "OPENAI_", "GOOGLE_"))}
    done = subprocess.run(
        [environment(requirement), str(script)],
        cwd=tmp_path, env={**given, "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert re.findall(r"^said: (.*)$", done.stdout, re.MULTILINE) == ["receipt of O-7 ['O-7']"]


def test_the_page_names_each_of_them() -> None:
    text = (ROOT / PAGE).read_text()
    versions = {one.partition("==")[2].rpartition(".")[0] for one in FAKES}
    assert versions == set(re.findall(r"^[A-Za-z ]+ \((\d+\.\d+)\):$", text, re.MULTILINE))
    assert sys.version_info >= (3, 11)
