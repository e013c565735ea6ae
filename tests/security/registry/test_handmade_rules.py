"""An operator, or a script in its name, registers a written-out contract whose section `team` is made by hand.

What it says of its origin cannot be proven: the files of the chain are not in the log. So everything that the gate
judges by is checked again, as if no overlay had ever been read.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any
from uuid import uuid4

import pytest

from apc_contracts.contract import expressions
from apc_contracts.contract.contract import task_contract
from apc_contracts.contract.overlay import read_overlay, write_out
from apc_contracts.contract.rules import Team
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.registry_change import parse_registry_change
from apc_contracts.wire.canonical import canonical_json
from apc_orchestrator.judging.registry import Registry

OVERLAY = b"""
name: incident
extends: task
only: [finding/1, action/1]
keep: {finding/1: [service]}
counters:
  risky: {for: action/1, when: 'content.risk == "high"', within: 1h}
rules:
  - {name: two-witnesses, for: action/1, require: 'authors("finding/1", "service") >= 2'}
  - {name: one-risky-action, for: action/1, when: 'content.risk == "high"', require: count("risky") < 1}
"""
TEXT = {"type": "string", "maxLength": 64}
SCHEMAS: dict[str, dict[str, Any]] = {
    "finding/1": {"type": "object", "properties": {"service": TEXT}, "required": ["service"]},
    "action/1": {
        "type": "object",
        "properties": {"service": TEXT, "risk": {"enum": ["high", "low"]}},
        "required": ["service", "risk"],
    },
}
WRITTEN: dict[str, Any] = json.loads(write_out(read_overlay(OVERLAY), OVERLAY, task_contract(), SCHEMAS).body)


def objection_to(document: dict[str, Any]) -> str | None:
    """Return why the gate refuses to register this contract, sent as plain JSON."""
    values = {"change_id": str(uuid4()), "action": "contract", "name": "incident", "revision": 1}
    body = canonical_json(values | {"document": json.dumps(document)})
    try:
        change = parse_registry_change(body)
    except PacketRefused as error:
        return error.message
    return Registry("orchestrator", {}, set()).objection(change)


def rule(at: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda team: team["rules"][at].update(fields)


def counter(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda team: team["counters"]["risky"].update(fields)


def kind(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda team: team["types"]["action/1"]["risk"].update(fields)


def team(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda section: section.update(fields)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str, str]] = {
    "no chain": (lambda section: section.pop("chain"), "team.chain", "required"),
    "short hash": (lambda section: section["chain"][0].update(hash="00"), "team.chain[0].hash", "match pattern"),
    "chain of another": (
        lambda section: section["chain"][1].update(name="other"),
        "team.chain[1].name",
        "the last file",
    ),
    "chain with a circle": (
        lambda section: section["chain"].insert(0, section["chain"][1]),
        "team.chain[2].name",
        "stands in the chain twice",
    ),
    "unknown part": (team(loosens=True), "team.loosens", "not permitted"),
    "zone of the machine": (team(zone="localtime"), "team.zone", "no time zone"),
    "zone of a path": (team(zone="../../etc/passwd"), "team.zone", "no time zone"),
    "role that is not listed": (
        lambda section: section.update(
            roles=["fixer"], rules=[section["rules"][0] | {"require": 'approved_by("lead")'}]
        ),
        "team.rules[0].require",
        "unknown role lead",
    ),
    "doubled rule": (rule(1, name="two-witnesses"), "team.rules[1].name", "already"),
    "name of the gate's own rule": (rule(0, name="only"), "team.rules[0].name", "the gate has a rule only"),
    "too many rules": (lambda section: section.update(rules=section["rules"] * 33), "team.rules", "at most 64"),
    "rule for nothing": (rule(0, **{"for": [{}]}), "team.rules[0].for", "name a schema, a type or both"),
    "rule for what nobody may send": (rule(0, **{"for": [{"schema": "x/1"}]}), "team.rules[0].for", "not in `only`"),
    "text for a truth value": (rule(0, reuse="yes"), "team.rules[0].reuse", "boolean"),
    "misspelled field": (rule(1, when='content.rsik == "high"'), "team.rules[1].when", "mean content.risk?"),
    "no truth value": (rule(0, require="content.risk"), "team.rules[0].require", "not true or false"),
    "macro in a macro": (
        rule(0, require="packet.to.all(a, packet.to.all(b, true))"),
        "team.rules[0].require",
        "a list in a macro may run long",
    ),
    "map": (rule(0, require="size(packet.to.map(a, a)) > 0"), "team.rules[0].require", "unknown method map"),
    "field that is not kept": (
        rule(0, require='authors("finding/1", "risk") > 1'),
        "team.rules[0].require",
        "is not kept",
    ),
    "counter that nobody declared": (team(counters={}), "team.rules[1].require", "unknown counter"),
    "window of a moment": (counter(within_ms=1), "team.counters.risky.within_ms", "greater than or equal"),
    "window as a text": (counter(within_ms="3600000"), "team.counters.risky.within_ms", "valid integer"),
    "key that is no field": (counter(by="content.risk x"), "team.counters.risky.by", "not a text, number"),
    "sum of a text": (
        lambda section: (counter(add="content.risk")(section), section["rules"].pop()),
        "team.counters.risky.add",
        "not a number",
    ),
    "kept field of no type": (team(types={}), "team.keep.finding/1", "to keep"),
    "type of a number": (kind(kind="integer", values=()), "team.rules[1].when", "whole number == text"),
    "type without end": (kind(length=10**9), "team.rules[1].when", "steps, 400,000 are allowed"),
    "type as a text": (kind(length="4"), "team.types.action/1.risk.length", "valid integer"),
}
"""What somebody changes in the section -> the place and the words of the refusal."""


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_wrong_in_a_section_made_by_hand_is_refused(name: str) -> None:
    change, place, says = CHANGES[name]
    document = deepcopy(WRITTEN)
    assert objection_to(document) is None

    change(document["team"])

    objection = objection_to(document)
    assert objection is not None and f"at {place}: " in objection, objection
    assert says in objection


@pytest.mark.parametrize("is_guarded", [False, True])
def test_the_codes_of_the_rules_stand_in_the_order_of_refusals(is_guarded: bool) -> None:
    """A gate that does not know where RULE_FAILED stands could refuse by another rule first."""
    document = deepcopy(WRITTEN)
    if is_guarded:
        document["refusals"]["order"].remove("RULE_FAILED")

    objection = objection_to(document)

    assert (objection is None) != is_guarded
    assert objection is None or "at refusals.order: " in objection


@pytest.mark.parametrize("is_guarded", [False, True])
def test_rules_that_cost_too_much_together_are_refused(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """Each of them is cheap enough."""
    document = deepcopy(WRITTEN)
    listed = {"kind": "strings", "items": 200, "length": 64}
    document["team"]["types"]["action/1"]["hosts"] = listed
    one = document["team"]["rules"][0] | {"require": 'content.hosts.exists(h, h.contains("db"))'}
    document["team"]["rules"] = [one | {"name": f"no-{at}"} for at in range(8)]
    document["team"]["counters"] = {}
    if not is_guarded:
        monkeypatch.setattr(expressions, "MAX_COST", 10**9)
        monkeypatch.setattr("apc_contracts.contract.rules.MAX_COST", 10**9)

    objection = objection_to(document)

    assert (objection is None) != is_guarded
    assert objection is None or "steps by its rules together, 400,000 are allowed" in objection


def test_a_gate_without_the_guard_takes_the_section_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    document = deepcopy(WRITTEN)
    document["team"]["rules"][0]["require"] = "content.risk"
    monkeypatch.setattr(Team, "check", lambda _: None)

    assert objection_to(document) is None
