"""The guide of rules: each of its rules passes its own tests, and they fail and meet it."""

import re
from pathlib import Path

import pytest
import yaml

from apc_contracts.contract.contract import task_contract
from apc_contracts.contract.overlay import load_overlay, read_overlay
from apc_contracts.replay.rule_tests import run_tests, schemas_of_tests

PAGE = Path(__file__).parents[2] / "docs/how-to/rules.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
LONGEST_RULE = 6


def test_the_page_has_ten_rules() -> None:
    assert len(BLOCKS) == 10
    for block in BLOCKS:
        rule = block[block.index("rules:\n") + len("rules:\n") : block.index("tests:\n")]
        assert len(rule.splitlines()) <= LONGEST_RULE, rule


@pytest.mark.parametrize("block", BLOCKS, ids=[yaml.safe_load(block)["rules"][0]["name"] for block in BLOCKS])
def test_a_rule_of_the_page_does_what_its_tests_say(block: str) -> None:
    body = f"name: page\nextends: task\n{block}".encode()
    overlay = read_overlay(body)
    schemas = schemas_of_tests(overlay.tests)
    contract = load_overlay(body, PAGE, lambda name: task_contract(), schemas)

    results = run_tests(contract, overlay.tests, schemas)

    assert [one.said for one in results if not one.has_passed] == []
    for rule in overlay.rules:
        assert any(rule.name in one.failed for one in results), rule.name
        assert any(rule.name in one.held for one in results), rule.name
