"""Schemas that `apc schema register` refuses before it needs a server: one line each, with the place."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.apc_command import ApcCommand

REFUSED: dict[str, tuple[Any, str]] = {
    "1 MB": ({"const": "x" * 1_000_000}, "note.json: larger than 65536 bytes: split the message"),
    "remote": (
        {"$ref": "https://example.org/a.json"},
        "schema note/1 at $.$ref: refer to a definition of this document",
    ),
    "cyclic": ({"$ref": "#"}, "schema note/1 at $: "),
    "backtracking": ({"properties": {"a": {"pattern": r"(a)\1"}}}, "write it without lookaround"),
    "exploding": ({"properties": {"a": {"pattern": "(a{1000}){1000}"}}}, "large repetitions"),
    "too deep": (None, "more than 32 levels of nesting"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_has_one_line(name: str, tmp_path: Path) -> None:
    document, message = REFUSED[name]
    text = json.dumps(document) if document is not None else '{"not":' * 40 + "{}" + "}" * 40
    (tmp_path / "note.json").write_text(text)
    ended = ApcCommand(tmp_path)("schema", "register", "note/1", "note.json")
    assert ended.returncode == 2 and ended.stdout == ""
    assert ended.stderr.startswith("apc: ") and ended.stderr.count("\n") == 1, ended.stderr
    assert message in ended.stderr, ended.stderr
    assert len(ended.stderr) < 400
