"""Files of contracts are checked in a process with limits."""

import json
from typing import Any

import pytest

from apc_contracts.contract.contract import task_contract
from apc_contracts.errors import ContractInvalid
from apc_contracts.replay import examination
from apc_contracts.replay.examination import examine, holds_overlay

PARENTS = {"task": task_contract().body}
RULES = b"""\
name: mine
extends: task
rules:
  - {name: cited, for: note/1, require: 'cited("note/1") >= 1'}
tests:
  - packet: {schema: note/1, from: a, content: {text: hello}}
    refused: cited
  - packet: {schema: note/1, from: a}
    accepted: true
"""


def test_an_overlay_is_written_out_and_its_tests_run() -> None:
    examined = examine(RULES, "mine.yml", PARENTS, {"note/1": {"type": "object"}})

    assert (examined.contract.name, examined.is_overlay, examined.guessed) == ("mine", True, ())
    assert [one.has_passed for one in examined.tests] == [True, False]
    assert examined.tests[0].failed == {"cited"}


def test_types_are_taken_from_the_tests_where_nobody_knows_them() -> None:
    assert examine(RULES, "mine.yml", PARENTS, {}, guesses=True).guessed == ("note/1",)
    with pytest.raises(ContractInvalid, match=r"mine\.yml invalid at rules\[0\]\.for: line 4, column 24: there is no"):
        examine(RULES, "mine.yml", PARENTS, {})


def test_a_whole_contract_is_checked_too() -> None:
    broken = json.loads(task_contract().body) | {"name": "mine", "phases": {}}

    assert examine(task_contract().body, "task.json", {}, {}).contract.hash == task_contract().hash
    with pytest.raises(ContractInvalid, match=r"mine\.json invalid at phases"):
        examine(json.dumps(broken).encode(), "mine.json", {}, {})


@pytest.mark.parametrize(("body", "is_one"), [(RULES, True), (b'{"extends": "task"}', True), (b'{"name": "a"}', False)])
def test_an_overlay_extends_something(body: bytes, is_one: bool) -> None:
    assert holds_overlay(body) is is_one


def test_a_file_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "WAIT_SECONDS", 0.001)

    with pytest.raises(ContractInvalid, match=r"mine\.yml invalid at \$: it cannot be checked within 20 s and 2 GiB"):
        examine(RULES, "mine.yml", PARENTS, {})


def _hostile(**parts: Any) -> bytes:
    return json.dumps({"name": "mine", "extends": "task"} | parts).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b"name: " + b"a" * 200_000,
        _hostile(rules=[{"name": "deep", "for": {"type": "DECISION"}, "require": "(" * 900 + "true" + ")" * 90}]),
        _hostile(rules=[{"name": f"r{i}", "for": {"type": "DECISION"}, "require": "1 +" * 300} for i in range(64)]),
    ],
)
def test_hostile_files_are_refused(body: bytes) -> None:
    with pytest.raises(ContractInvalid, match=r"^contract mine\.yml invalid at "):
        examine(body, "mine.yml", PARENTS, {})


def test_a_contract_that_would_take_the_gate_long_to_compile_is_refused() -> None:
    require = " || ".join(["content.size == 1"] * 45)
    rules = [{"name": f"r{index}", "for": "note/1", "require": require} for index in range(64)]
    schema = {"type": "object", "properties": {"size": {"type": "number"}}, "required": ["size"]}

    with pytest.raises(ContractInvalid, match=r"all expressions together have 60,\d+ characters, 32,768 are allowed"):
        examine(_hostile(rules=rules), "mine.yml", PARENTS, {"note/1": schema})
