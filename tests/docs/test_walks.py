"""Each walk of docs/explanation/walks.md leads through files that exist and are connected, none of them twice."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/walks.md"
STEP = re.compile(r"^\| (?P<number>\d+) \| \[[^\]]+\]\((?P<file>[^)]+)\) \| (?P<text>[^|]+) \|$", re.MULTILINE)


def _walks() -> dict[str, list[tuple[Path, str]]]:
    walks = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        steps = list(STEP.finditer(text))
        assert [int(step["number"]) for step in steps] == list(range(1, len(steps) + 1)), title
        walks[title] = [((PAGE.parent / step["file"]).resolve(), step["text"]) for step in steps]
    return walks


def _module(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(importer: Path, imported: Path) -> bool:
    module = _module(imported)
    package = module.rpartition(".")[0]
    text = importer.read_text(encoding="utf-8")
    return re.search(rf"^\s*from (?:{re.escape(module)}|{re.escape(package)}) import", text, re.MULTILINE) is not None


def test_there_are_three_walks() -> None:
    assert {title: len(steps) >= 10 for title, steps in _walks().items()} == {
        "A packet from AMQP to Postgres": True,
        "`ctx.emit`": True,
        "`apc packet trace`": True,
    }


@pytest.mark.parametrize("title", _walks())
def test_a_walk_enters_no_file_twice(title: str) -> None:
    files = [file for file, _ in _walks()[title]]
    assert [file for file in files if not file.is_file()] == []
    assert len(set(files)) == len(files)


@pytest.mark.parametrize("title", _walks())
def test_each_step_follows_from_an_earlier_one(title: str) -> None:
    """An import in either direction connects two files, or a queue or the bus port that the step names."""
    steps = _walks()[title]
    for place, (file, text) in enumerate(steps[1:], start=1):
        earlier = [one for one, _ in steps[:place]]
        is_connected = any(_imports(one, file) or _imports(file, one) for one in earlier)
        assert is_connected or re.search(r"\b(queue|bus port)\b", text), file.relative_to(ROOT)


def test_each_name_is_in_its_file() -> None:
    """The functions and classes that a step names are defined in its file."""
    for steps in _walks().values():
        for file, text in steps:
            source = file.read_text(encoding="utf-8")
            named = re.findall(r"`([A-Za-z_]+)(?:\.([a-z_]+))?`", text)
            for name in (part for pair in named if pair[0] != "apc" for part in pair if part):
                is_known = re.search(rf"(?:class|def) {name}\b", source) is not None
                assert is_known or name in ("requires_ack", "intra_agent_coordination"), (file.name, name)
