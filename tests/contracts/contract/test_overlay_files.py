"""From the file of an overlay to its contract, and where its mistakes stand."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from apc_contracts.contract.contract import MAX_BYTES, task_contract
from apc_contracts.contract.overlay import load_overlay, load_overlay_file, overlay_schema, read_overlay
from apc_contracts.contract.plain_yaml import read_plain
from apc_contracts.errors import ContractInvalid

INCIDENT = """\
name: incident
extends: task
only: [alert/1, finding/1, action/1]
keep: {finding/1: [service]}
counters:
  risky: {for: action/1, when: 'content.risk == "high"', by: session}
rules:
  - name: two-witnesses
    for: action/1
    require: authors("finding/1", "service") >= 2 && cites_role("logs")
  - name: one-risky-action
    for: action/1
    when: 'content.risk == "high"'
    require: count("risky") < 1
session: {max_rounds: 3}
tests:
  - packet: {schema: action/1, from: fixer, content: {risk: high, service: api}}
    refused: two-witnesses
"""


def _object(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": sorted(fields)}


TEXT = {"type": "string"}
SCHEMAS = {
    "alert/1": _object(service=TEXT),
    "finding/1": _object(service=TEXT),
    "action/1": _object(service=TEXT, risk={"enum": ["high", "low"]}),
}


def _parents(name: str) -> Any:
    return task_contract() if name == "task" else None


def test_a_file_becomes_the_whole_contract(tmp_path: Path) -> None:
    path = tmp_path / "incident.yml"
    path.write_text(INCIDENT)

    contract = load_overlay_file(path, _parents, SCHEMAS)

    assert contract.name == "incident"
    assert contract.team is not None
    assert [rule.name for rule in contract.team.rules] == ["two-witnesses", "one-risky-action"]


def test_json_with_tabs_makes_the_same_rules() -> None:
    body = json.dumps(read_plain(INCIDENT.encode()), indent="\t").encode()

    team = load_overlay(body, "incident.json", _parents, SCHEMAS).team

    assert team is not None
    assert [rule.name for rule in team.rules] == ["two-witnesses", "one-risky-action"]


def test_known_roles_are_checked_and_not_written_into_the_contract() -> None:
    body = INCIDENT.encode()

    free, checked = (load_overlay(body, "i.yml", _parents, SCHEMAS, roles) for roles in (None, ["logs", "lead"]))

    assert free.body == checked.body
    with pytest.raises(ContractInvalid, match=r"line 10, column 54: unknown role logs: do you mean log\?"):
        load_overlay(body, "i.yml", _parents, SCHEMAS, ["log"])


@pytest.mark.parametrize(
    ("line", "instead", "says"),
    [
        ("extends: task", "extends: tusk", "extends: line 2, column 10: there is no contract 'tusk'"),
        ("only: [alert/1", "only: [alrt/1", r"only[0]: line 3, column 8: there is no schema alrt/1: do you mean alert"),
        ("[service]", "[servic]", "keep.finding/1: line 4, column 19: finding/1 has no text"),
        ("by: session", "by: sesion", "counters.risky.by: line 6, column 62: a counter counts by session, sender"),
        (
            "    require: count",
            "    requires: count",
            "rules[1].requires: line 14, column 15: there is no 'requires': do",
        ),
        ("cites_role(", "cites_rol(", "rules[0].require: line 10, column 54: unknown function cites_rol"),
        ("when: 'content.risk", "when: 'content.rsik", "counters.risky.when: line 6, column 33: unknown field"),
        ('count("risky") < 1', "count('risky') < 'a'", "rules[1].require: line 14, column 29: whole number < text"),
        ('count("risky") < 1', "|\n      true &&\n      now", "rules[1].require: line 16, column 7: unknown name now"),
        ('count("risky") < 1', ">\n      true &&\n      now", "rules[1].require: line 14, column 14: unknown name now"),
        ("name: one-risky-action", "name: two-witnesses", "rules[1].name: line 11, column 11: there is a rule"),
        ("max_rounds: 3", "max_rounds: x", "session.max_rounds: line 15, column 23: write a whole number in digits"),
        ("refused: two", "refusd: two", "tests[0].refusd: line 18, column 13: there is no 'refusd': do you mean ref"),
        ("    refused: two-witnesses\n", "", "tests[0]: line 17, column 5: a test says one of refused: RULE"),
        ("from: fixer", "from: fixer, form: a", "tests[0].packet.form: line 17, column 51: there is no 'form'"),
    ],
)
def test_a_mistake_has_file_place_line_and_column(line: str, instead: str, says: str) -> None:
    assert line in INCIDENT

    with pytest.raises(ContractInvalid) as refused:
        load_overlay(INCIDENT.replace(line, instead, 1).encode(), "incident.yml", _parents, SCHEMAS)

    assert str(refused.value).startswith(f"contract incident.yml invalid at {says}")


_A_TEST = "tests: [{packet: {schema: a/1, from: b%s}%s, accepted: true}]"


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("session.max_rounds", "session: {max_rounds: %s}"),
        ("limits.wakes", "limits: {wakes: %s}"),
        ("tests[0].session.round", _A_TEST % ("", ", session: {round: %s}")),
        ("tests[0].session.age_s", _A_TEST % ("", ", session: {age_s: %s}")),
        ("tests[0].session.spent.cost", _A_TEST % ("", ", session: {spent: {cost: %s}}")),
        ("tests[0].session.budgets.tokens", _A_TEST % ("", ", session: {budgets: {tokens: %s}}")),
        ("tests[0].packet.confidence", _A_TEST % (", confidence: %s", "")),
    ],
)
@pytest.mark.parametrize("written", ["1_000", '"1"', "true", "0x10", "1:30"])
def test_a_number_that_is_written_otherwise_is_refused_with_its_field(place: str, text: str, written: str) -> None:
    head = "name: quirks\nextends: task\n"
    read_overlay((head + text % "1").encode())

    with pytest.raises(ContractInvalid, match=r"write a (whole )?number in digits.* without quotes") as refused:
        read_overlay((head + text % written).encode())

    assert refused.value.place == place


@pytest.mark.parametrize(
    ("place", "text", "good", "bad"),
    [
        ("rules[0].reuse", "rules: [{name: a, for: a/1, require: 'true', reuse: %s}]", "true", "1"),
        ("rules[0].reuse", "rules: [{name: a, for: a/1, require: 'true', reuse: %s}]", "false", "no"),
        ("tests[0].packet.retracted", _A_TEST % (", retracted: %s", ""), "true", '"true"'),
        ("tests[0].at", _A_TEST % ("", ", at: %s"), "2026-01-05T12:00:00Z", "20260105"),
    ],
)
def test_other_values_are_not_guessed_either(place: str, text: str, good: str, bad: str) -> None:
    head = "name: quirks\nextends: task\n"
    read_overlay((head + text % good).encode())

    with pytest.raises(ContractInvalid) as refused:
        read_overlay((head + text % bad).encode())

    assert refused.value.place == place


def test_keys_that_only_unicode_tells_apart_are_refused() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    text = "name: names\nextends: task\nverification: {%s: warn, %s: off}"
    read_overlay((text % (composed, "e")).encode())

    with pytest.raises(ContractInvalid, match="twice, written with other code points") as refused:
        read_overlay((text % (composed, decomposed)).encode())

    assert refused.value.place == f"verification.{decomposed}"


def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "large.yml"
    path.write_text("[" * 1_000_000)

    with pytest.raises(ContractInvalid, match=f"more than {MAX_BYTES} bytes"):
        load_overlay_file(path, _parents, SCHEMAS)
    with pytest.raises(ContractInvalid, match=f"more than {MAX_BYTES} bytes"):
        read_overlay(path.read_bytes())
    with pytest.raises(ContractInvalid, match="deeper than"):
        read_overlay(b"[" * 1_000)


def test_the_schema_of_overlays_is_exported_and_holds() -> None:
    exported = json.loads((files("apc_contracts") / "data/overlay.schema.json").read_text())

    assert exported == overlay_schema()
    jsonschema.Draft202012Validator.check_schema(exported)
    jsonschema.validate(read_plain(INCIDENT.encode()), exported)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(read_plain(INCIDENT.replace("rules:", "rulez:").encode()), exported)
