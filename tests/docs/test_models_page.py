"""The guide of models: its commands have these options, and its Python can be run."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/research/models.md"


def commands() -> list[str]:
    return sorted(set(re.findall(r"apc automl \w+(?: [^`\n]+)?", PAGE.read_text())))


def test_each_command_of_the_page_has_its_options() -> None:
    used: dict[str, set[str]] = {}
    for command in commands():
        used.setdefault(command.split()[2], set()).update(re.findall(r"--[a-z-]+", command))
    assert {name: bool(options) for name, options in used.items()} == {"run": True, "predict": True, "verify": False}
    for name, options in used.items():
        known = subprocess.check_output([sys.executable, "-m", "apc_cli", "automl", name, "--help"], text=True)
        assert not {option for option in options if option not in known}, name


def test_the_python_of_the_page_names_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "model_of_the_page.py").write_text(block)
    with pytest.raises(ValueError, match="name the folder that `apc automl run` wrote"):
        importlib.import_module("model_of_the_page")
