"""The tests of an overlay, run by the gate's own rules."""

from typing import Any

import pytest

from apc_contracts.contract.contract import Contract, task_contract
from apc_contracts.contract.overlay import load_overlay, read_overlay
from apc_contracts.errors import ContractInvalid
from apc_contracts.replay.rule_tests import RuleTestResult, run_tests

RULES = """\
name: incident
extends: task
keep: {finding/1: [service]}
counters:
  actions: {for: action/1, within: 1h}
rules:
  - name: two-witnesses
    for: action/1
    require: authors("finding/1", "service") >= 2
  - name: lead-approves
    for: action/1
    when: 'content.risk == "high"'
    require: approved_by("lead")
  - name: not-too-many
    for: action/1
    mode: warn
    require: count("actions") < 1
  - name: by-day
    for: action/1
    require: local.hour >= 8 && local.hour < 18
  - name: to-clerks
    for: {schema: action/1, type: DECISION}
    require: packet.to_roles == ["clerk"] && sender.rights.exists(right, right == "decide")
  - name: in-budget
    for: action/1
    require: spent.tokens < 100 && effect("refund") == "absent" && session.round == 1
tests:
"""
TEXT = {"type": "string"}
FINDING = {"type": "object", "properties": {"service": TEXT}, "required": ["service"]}
ACTION = {
    "type": "object",
    "properties": {"service": TEXT, "risk": {"enum": ["high", "low"]}},
    "required": ["service", "risk"],
}
SCHEMAS: dict[str, Any] = {"finding/1": FINDING, "action/1": ACTION}


def _contract(tests: str) -> tuple[Contract, Any]:
    body = (RULES + tests).encode()
    contract = load_overlay(body, "incident.yml", lambda name: task_contract(), SCHEMAS)
    return contract, read_overlay(body).tests


def _one(said: str, risk: str = "low", packet: str = "", rest: str = "") -> RuleTestResult:
    witnesses = ", ".join(
        f"{{schema: finding/1, from: {one}, content: {{service: api}}}}" for one in ("logs", "metrics")
    )
    evidence = "" if "evidence:" in packet else f", evidence: [{witnesses}]"
    contract, tests = _contract(
        f"  - packet: {{schema: action/1, from: fixer, content: {{risk: {risk}, service: api}}{evidence}{packet}}}\n"
        f"    {said}\n{rest}"
    )
    (result,) = run_tests(contract, tests, SCHEMAS)
    return result


LEAD = ", approvals: [{by: ida, role: lead}]"
OTHER = "{schema: finding/1, from: logs, content: {service: db}}"
SAME = "{schema: finding/1, from: logs, content: {service: api}}"
EARLIER = "    before: [{schema: action/1, from: other, content: {risk: low, service: api}"


@pytest.mark.parametrize(
    ("said", "risk", "packet", "rest"),
    [
        ("accepted: true", "low", "", ""),
        ("accepted: true", "high", LEAD, ""),
        ("refused: lead-approves", "high", "", ""),
        ("refused: lead-approves", "high", LEAD.replace("role: lead", "role: boss"), ""),
        ("refused: lead-approves", "high", LEAD.replace("lead}", "lead, approved: false}"), ""),
        ("refused: lead-approves", "high", LEAD.replace("lead}", "lead, in_time: false}"), ""),
        ("refused: lead-approves", "high", LEAD.replace("lead}", "lead, content: {risk: low}}"), ""),
        ("refused: two-witnesses", "low", ", evidence: []", ""),
        ("refused: two-witnesses", "low", f", evidence: [{SAME}, {SAME}]", ""),
        ("refused: two-witnesses", "low", f", evidence: [{OTHER}, {SAME}]", ""),
        ("refused: EVIDENCE_UNKNOWN", "low", f", evidence: [{SAME[:-1]}, retracted: true}}]", ""),
        ("refused: CONTENT_INVALID", "middle", "", ""),
        ("warned: not-too-many", "low", "", EARLIER + "}]\n"),
        ("accepted: true", "low", "", EARLIER + ", at: '2026-01-05T10:00:00Z'}]\n"),
        ("refused: by-day", "low", "", "    at: '2026-01-05T19:00:00Z'\n"),
        ("refused: to-clerks", "low", ", type: DECISION, to: scribe", ""),
        ("accepted: true", "low", ", type: DECISION, to: scribe, rights: [decide]", "    agents: {scribe: clerk}\n"),
        ("refused: in-budget", "low", "", "    session: {spent: {tokens: 100}}\n"),
        ("refused: in-budget", "low", "", "    session: {effects: {refund: made}}\n"),
        ("refused: in-budget", "low", "", "    session: {round: 2}\n"),
    ],
)
def test_a_test_says_what_the_rules_say(said: str, risk: str, packet: str, rest: str) -> None:
    result = _one(said, risk, packet, rest)

    assert result.has_passed, result.said


def test_another_outcome_says_what_came_and_what_is_wanted() -> None:
    refused, accepted = _one("accepted: true", "high"), _one("refused: lead-approves")

    assert not refused.has_passed
    assert refused.said == (
        'refused by lead-approves: the rule lead-approves needs approved_by("lead") (approved_by("lead") = False); '
        "the test wants it accepted"
    )
    assert (accepted.has_passed, accepted.said) == (False, "accepted; the test wants it refused by lead-approves")


def test_rules_that_failed_and_held_are_named() -> None:
    result = _one("refused: lead-approves", "high")

    assert (set(result.failed), set(result.held)) == ({"lead-approves"}, {"two-witnesses"})
    assert "lead-approves" not in _one("accepted: true").held, "its `when` did not hold"


SIGNALS = """\
name: signals
extends: task
counters: {asked: {for: {type: SIGNAL}, by: sender}}
rules:
  - {name: one-signal, for: {type: SIGNAL}, require: count("asked") < 1}
  - {name: leads-retract, for: {type: RETRACTION}, require: 'sender.role == "lead"'}
  - {name: asks-about-risks, for: {schema: action/1, type: SIGNAL}, require: 'content.risk == "high"'}
  - {name: never, for: action/1, require: 'packet.type != "MESSAGE"'}
tests:
"""
QUERY = "{type: SIGNAL, from: a, payload: {signal: QUERY}}"
ID = "01a21a6b-d45a-7378-a34d-1509c8a325aa"
RETRACTION = f"{{type: RETRACTION, from: a, payload: {{target_packet_id: {ID}, reason: wrong}}}}"
ASK = (
    "{type: SIGNAL, from: a, to: b, payload: {signal: ASK, expected_response_by: 2026-01-05T13:00:00Z, "
    "request: {schema: action/1, content: {service: api, risk: low}, returns: finding/1}}}"
)


@pytest.mark.parametrize(
    ("packet", "rest", "said"),
    [
        (QUERY, "", "accepted: true"),
        (QUERY, f"before: [{QUERY}]", "refused: one-signal"),
        (RETRACTION, "", "refused: leads-retract"),
        (RETRACTION.replace("from: a", "from: a, role: lead"), "", "accepted: true"),
        (ASK, "", "refused: asks-about-risks"),
        (ASK.replace("low", "high"), "", "accepted: true"),
        (ASK.replace(", risk: low", ""), "", "refused: CONTENT_INVALID"),
        (QUERY.replace("SIGNAL", "HEARTBEAT"), "", "accepted: true"),
    ],
)
def test_control_packets_are_judged_by_the_rules_that_name_them(packet: str, rest: str, said: str) -> None:
    test = f"  - packet: {packet}\n    {said}\n" + (f"    {rest}\n" if rest else "")
    body = (SIGNALS + test).encode()
    contract = load_overlay(body, "signals.yml", lambda name: task_contract(), SCHEMAS)

    (result,) = run_tests(contract, read_overlay(body).tests, SCHEMAS)

    assert result.has_passed, result.said


@pytest.mark.parametrize(
    ("packet", "says"),
    [
        (QUERY.replace("QUERY", "NOPE"), "SCHEMA_INVALID at payload.signal: must be "),
        (QUERY.replace("from: a", "from: orchestrator"), "no rule judges what the orchestrator sends: name an agent"),
    ],
)
def test_a_payload_that_is_none_says_why(packet: str, says: str) -> None:
    body = f"{SIGNALS}  - {{packet: {packet}, accepted: true}}\n".encode()
    contract = load_overlay(body, "signals.yml", lambda name: task_contract(), SCHEMAS)

    (result,) = run_tests(contract, read_overlay(body).tests, SCHEMAS)

    assert not result.has_passed
    assert result.said.startswith(f"the test cannot be run: {says}")


@pytest.mark.parametrize(
    ("packet", "says"),
    [
        ("{type: SIGNAL, from: a}", "a SIGNAL has a payload, and neither schema nor content"),
        ("{type: SIGNAL, schema: action/1, from: a}", "a SIGNAL has a payload, and neither schema nor content"),
        ("{from: a}", "a MESSAGE has schema and content, and no payload"),
        ("{type: DECISION, schema: action/1, from: a, payload: {}}", "a DECISION has schema and content, and no pay"),
    ],
)
def test_a_packet_has_a_content_or_a_payload(packet: str, says: str) -> None:
    with pytest.raises(ContractInvalid, match=says) as refused:
        read_overlay(f"{SIGNALS}  - {{packet: {packet}, accepted: true}}\n".encode())

    assert refused.value.place == "tests[0].packet"


@pytest.mark.parametrize(
    ("packet", "rest", "says"),
    [
        (", evidence: [{schema: finding/1, from: logs}]", "", "evidence: payload.content: "),
        (LEAD.replace("ida", "fixer"), "", "fixer is an agent of the test: name a person"),
        (", role: a", "    agents: {fixer: b}\n", "fixer has the roles b and a: keep one"),
        ("", "    session: {state: DONE}\n", "session.state: there is no open state DONE; there are "),
    ],
)
def test_a_test_that_cannot_be_run_says_why(packet: str, rest: str, says: str) -> None:
    result = _one("accepted: true", packet=packet, rest=rest)

    assert not result.has_passed
    assert result.said.startswith(f"the test cannot be run: {says}")
