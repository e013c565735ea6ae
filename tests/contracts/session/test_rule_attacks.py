"""Attempts to get round the rules of a team, and rules by which a contract would stop its gate."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apc_contracts import MessagePayload, Recipient, SignalPayload
from apc_contracts.contract.contract import contract_from_bytes, packaged_contract_bytes
from apc_contracts.errors import ContractInvalid
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.payloads.by_type import AgentRequest, AnswerSpec, Question
from apc_contracts.session.document import decode_document
from apc_contracts.vocabulary import ORCHESTRATOR, Channel, Signal

from .room import agent, contract_of, person, rules
from .test_team_rules import HEAD, refused, room, rule_of


def rule(name: str, require: str, when: str = "true") -> str:
    """Return a rule for action/1, its expressions as blocks that need no quotes."""
    return f"  - name: {name}\n    for: action/1\n    when: |-\n      {when}\n    require: |-\n      {require}\n"


# What stops a gate.


def test_rules_that_are_too_deep_together_are_judged_one_by_one() -> None:
    """Each compiles alone, just below CEL's bound; joined they stand deeper."""
    deep = "(" * 30 + "1 - 1 == 0" + ")" * 30
    incident = room(contract_of(HEAD + rule("a", deep, deep)))
    incident.accept(incident.action())


def test_rules_that_are_too_long_together_are_judged_one_by_one() -> None:
    """CEL takes 100,000 characters at once."""
    text = HEAD + "".join(rule(f"r{index}", f'"{"a" * 980}" != ""', f'"{"b" * 980}" != ""') for index in range(64))
    with pytest.raises(ContractInvalid, match="all expressions together"):
        contract_of(text)
    deep = "(" * 28 + "1 - 1 == 0" + ")" * 28
    incident = room(contract_of(HEAD + "".join(rule(f"r{index}", deep, deep) for index in range(30))))
    incident.accept(incident.action())


COUNTED = "name: t\nextends: task\ncounters: {c: {for: action/1, %s}}\nrules:\n  - {name: r, for: %s, require: '%s'}"


@pytest.mark.parametrize("within", ["", ", within: 1h"])
def test_huge_amounts_leave_a_session_that_can_be_judged_and_read(within: str) -> None:
    """Beyond the largest double a sum is no number, and JSON has none for it."""
    incident = room(contract_of(COUNTED % (f"add: content.cents{within}", "finding/1", 'sum("c") < 5')))
    for note in "abc":
        incident.accept(incident.action(note=note, cents=1e308))
    assert rule_of(incident.message("logs", "finding/1", {"service": "api"}, "fixer")) == "r"
    document = incident.simulation.session.document
    assert decode_document(document.encode()).counters == document.counters


# Counters.


def test_an_error_in_a_counters_when_counts() -> None:
    """Otherwise a sender that provokes it is never counted."""
    when = 'when: "!has(content.note) || 1 / size(content.note) >= 0"'
    incident = room(contract_of(COUNTED % (when, "action/1", 'count("c") < 2')))
    for index, service in enumerate(("a", "b", "c")):
        sent = incident.action(note="", service=service)
        assert (sent[1].refusal is None) == (index < 2)


ACTION = {"service": "api", "risk": "low", "cents": 0}


def test_a_group_gets_round_no_counter_by_recipient() -> None:
    """`_all` is no separate recipient: what it got counts for everybody, and the other way round."""
    incident = room(contract_of(COUNTED % ("by: recipient", "action/1", 'count("c") < 2')))
    incident.accept(incident.message("fixer", "action/1", ACTION, "scribe"))
    incident.accept(incident.message("fixer", "action/1", ACTION | {"note": "to all"}, "_all"))
    for index, to in enumerate(("scribe", "_all")):
        assert rule_of(incident.message("fixer", "action/1", ACTION | {"note": f"{index}"}, to)) == "r"
    incident.accept(incident.message("fixer", "action/1", ACTION, "helper"))
    assert rule_of(incident.message("fixer", "action/1", ACTION | {"note": "again"}, "helper")) == "r"


def test_one_packet_opens_no_more_keys_than_its_senders_share() -> None:
    incident = room(contract_of(COUNTED % ("by: recipient", "action/1", "true")))
    names = [f"worker{index}" for index in range(65)]
    incident.simulation.registry.update({name: agent(name, "worker") for name in names})
    refusal = refused(incident.message("fixer", "action/1", ACTION, names))
    assert (refusal.rule, refusal.path) == ("counter-keys", "team.counters.c")
    incident.accept(incident.message("fixer", "action/1", ACTION, names[:64]))


# Recipients.


def test_a_group_is_read_as_those_whom_it_reaches() -> None:
    """Neither does `_all` of one swarm reach another, nor does `role:NAME` hide who is asked."""
    incident = room(rules('"metrics" in packet.to_roles && !("scribe" in packet.to_roles)'))
    incident.accept(incident.message("scribe", "action/1", ACTION, "metrics"))
    assert rule_of(incident.message("fixer", "action/1", ACTION, "_all")) == "r0"
    simulation = incident.simulation
    payload = MessagePayload.model_validate({"schema": "action/1", "content": ACTION})
    for fields in ({}, {"swarm_id": "logs"}, {"role": "logs"}):
        sent = simulation.build("scribe", payload, "_all", version="apc/1.1")
        told = sent.model_copy(update={"recipients": (Recipient(agent_id="_all", **fields),)})
        is_kept = simulation.take(told).kind is VerdictKind.ACCEPTED
        assert is_kept == (not fields) == any(one[0] == told for one in simulation.inboxes["metrics"])


@pytest.mark.parametrize("role", ["metrics", "fixer"])
def test_a_request_to_a_role_is_read_as_those_whom_it_reaches(role: str) -> None:
    incident = room(rules('"metrics" in packet.to_roles'))
    request = AgentRequest.model_validate({"schema": "action/1", "content": ACTION, "returns": "outcome/1"})
    due = incident.simulation.now + timedelta(minutes=5)
    payload = SignalPayload(signal=Signal.ASK, expected_response_by=due, request=request)
    _, verdict = incident.send("scribe", payload, f"role:{role}")
    assert (verdict.kind is VerdictKind.ACCEPTED) == (role == "metrics")


# Expressions and overlays.


def test_two_readings_are_never_one() -> None:
    """A person of the role lead_2 must not stand for two leads."""
    incident = room(rules('approved_by("lead", 2)', 'approved_by("lead_2")'))
    incident.simulation.registry["lea"] = person("lea", "lead_2")
    about = Question(text="May I?", content={"schema": "action/1", "content": ACTION})
    due = incident.simulation.now + timedelta(minutes=5)
    asked = SignalPayload(signal=Signal.ASK, expected_response_by=due, question=about)
    incident.accept(incident.answer(incident.accept(incident.send("fixer", asked, "role:lead_2")), "lea"))
    assert rule_of(incident.message("fixer", "action/1", ACTION, "scribe")) == "r0"


@pytest.mark.parametrize("pattern", [r"\\pL", r"[^\\PN]", "." * 500])
def test_a_pattern_that_takes_long_to_read_is_refused(pattern: str) -> None:
    """Milliseconds each, again for each packet."""
    with pytest.raises(ContractInvalid, match=r"takes long to read|it may cost"):
        contract_of(HEAD + rule("a", f'content.service.matches("{pattern}")'))


def test_an_overlay_does_not_move_its_parents_hours() -> None:
    parent = rules("local.hour < 10", zone="Europe/Berlin")
    with pytest.raises(ContractInvalid, match="rules of its parent read the time in Europe/Berlin"):
        contract_of("name: child\nextends: tried\nzone: America/New_York", parent)
    contract_of("name: child\nextends: tried\nzone: Europe/Berlin", parent)
    contract_of("name: child\nextends: tried\nzone: America/New_York", rules("true", zone="Europe/Berlin"))


def test_an_overlay_does_not_shorten_a_veto() -> None:
    parent, text = (
        contract_from_bytes(packaged_contract_bytes()),
        "name: child\nextends: apc-1.0\nsession: {veto_window_ms: %d}",
    )
    window = parent.session.veto_window_ms
    with pytest.raises(ContractInvalid, match=f"at least {window}"):
        contract_of(text % (window - 1), parent)
    assert contract_of(text % (window + 1), parent).session.veto_window_ms == window + 1


@pytest.mark.parametrize("numbers", ["session: {max_rounds: -1}", "limits: {wakes: 0}"])
def test_a_number_that_no_contract_may_have_is_named(numbers: str) -> None:
    with pytest.raises(ContractInvalid, match="greater than or equal to 1"):
        contract_of(f"name: t\nextends: task\n{numbers}")


# What was tried and is refused.


def test_no_other_kind_of_packet_gets_round_a_rule() -> None:
    incident = room(rules("false"))
    assert rule_of(incident.decision()) == "r0"
    assert rule_of(incident.message("fixer", "action/1", ACTION, "fixer", channel=Channel.INTRA_AGENT)) == "r0"
    assert rule_of(incident.message("fixer", "action/1", ACTION, "_substrate")) == "r0"
    due, typed = incident.simulation.now + timedelta(minutes=5), {"schema": "action/1", "content": ACTION}
    request = AgentRequest.model_validate({"schema": "alert/1", "content": {"service": "api"}, "returns": "action/1"})
    asked = SignalPayload(signal=Signal.ASK, expected_response_by=due, request=request)
    question = incident.accept(incident.send("fixer", asked, "scribe"))
    seen = incident.simulation.session.identities[question.packet_id].payload_hash.hex()
    answer = AnswerSpec.model_validate({"outcome": "answered", "seen": seen, "result": typed})
    payload = SignalPayload(signal=Signal.ANSWER, answer=answer)
    assert rule_of(incident.send("scribe", payload, "fixer", parent=question)) == "r0"


def test_one_packet_cited_in_several_spellings_is_one() -> None:
    incident = room(rules('cited("finding/1") >= 2'))
    found = incident.finding()
    name = str(found.packet_id)
    for spelling in (f"{{{name}}}", f"urn:uuid:{name}", name.replace("-", ""), f"{name}\n"):
        assert refused(incident.action([found, f"packet:{spelling}"])).code == "EVIDENCE_UNKNOWN"
    for spelling in (f" packet:{name}", f"\N{FULLWIDTH LATIN SMALL LETTER P}acket:{name}", f"packet:{name.upper()}"):
        assert rule_of(incident.action([found, spelling])) == "r0"


def test_an_approval_holds_for_equal_json_alone() -> None:
    incident = room(rules('approved_by("lead")'))
    incident.approved(amount=-0.0, note="e\N{COMBINING ACUTE ACCENT}")
    assert rule_of(incident.action(risk="high", amount=0, note="\N{LATIN SMALL LETTER E WITH ACUTE}")) == "r0"
    assert rule_of(incident.action(risk="high", note="e\N{COMBINING ACUTE ACCENT}")) == "r0"
    incident.accept(incident.action(risk="high", amount=0, note="e\N{COMBINING ACUTE ACCENT}"))


@pytest.mark.parametrize("about", [{"more": 1}, {"content": None}, {"schema": "action/2"}, {"schema": ["action/1"]}])
def test_a_question_about_more_than_the_proposal_approves_nothing(about: dict[str, Any]) -> None:
    incident = room(rules('approved_by("lead")'))
    question = Question(text="May I?", content={"schema": "action/1", "content": ACTION} | about)
    due = incident.simulation.now + timedelta(minutes=5)
    asked = SignalPayload(signal=Signal.ASK, expected_response_by=due, question=question)
    incident.accept(incident.answer(incident.accept(incident.send("fixer", asked, "role:lead"))))
    assert rule_of(incident.message("fixer", "action/1", ACTION, "scribe")) == "r0"


def test_packets_held_by_a_pause_share_no_approval_count_or_evidence() -> None:
    incident = room(rules('approved_by("lead")', 'count("c") < 2', counters="{c: {for: action/1}}"))
    ground = incident.finding()
    incident.approved()
    incident.accept(incident.send("desk", SignalPayload(signal=Signal.PAUSE), ORCHESTRATOR))
    held = [incident.action([ground], risk="high"), incident.action(risk="high"), incident.decision(risk="high")]
    assert all(verdict.kind is VerdictKind.HELD for _, verdict in held)
    incident.retract(ground)
    incident.accept(incident.send("desk", SignalPayload(signal=Signal.RESUME), ORCHESTRATOR))
    ids = [packet.packet_id for packet, _ in held]
    assert incident.simulation.denied == {ids[0]: "EVIDENCE_UNKNOWN", ids[2]: "RULE_FAILED"}


def test_a_pause_makes_nobody_its_own_witness() -> None:
    """What a pause held is judged at RESUME, when no message says any more by which broker user it came."""
    incident = room(rules('authors("finding/1") >= 2'))
    users = incident.simulation.registry
    users["helper"] = replace(users["helper"], broker_user="agent.fixer")
    own, other, another = (incident.finding(name, to="fixer") for name in ("helper", "logs", "metrics"))
    incident.accept(incident.send("desk", SignalPayload(signal=Signal.PAUSE), ORCHESTRATOR))
    alone, carried = incident.action([own, other], note="alone"), incident.action([own, other, another], note="carried")
    assert (alone[1].kind, carried[1].kind) == (VerdictKind.HELD, VerdictKind.HELD)

    incident.accept(incident.send("desk", SignalPayload(signal=Signal.RESUME), ORCHESTRATOR))

    assert incident.simulation.denied == {alone[0].packet_id: "RULE_FAILED"}


HOSTILE = {
    "anchor": ("only: &a [action/1]", "no anchors"),
    "merge": ("session: {<<: {max_rounds: 1}}", "whole number"),
    "escaped key": ('"na\\x6de": u', "stands there twice"),
    "octal": ("session: {max_rounds: 0o7}", "whole number"),
    "infinity": ("limits: {wakes: .inf}", "whole number"),
    "depth": ("tests: " + "[" * 50_000, "deeper than 16 levels"),
    "path": ("zone: ../../../etc/passwd", "no time zone"),
    "NUL": ('zone: "a\\0"', "no time zone"),
    "surrogate": ('zone: "\\ud800"', "valid string"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_overlay_is_refused_by_its_place(name: str) -> None:
    lines, said = HOSTILE[name]
    with pytest.raises(ContractInvalid, match=said):
        contract_of(f"name: t\nextends: task\n{lines}")


@pytest.mark.parametrize(
    "text",
    [
        "true) || (true",
        "true // && false",
        "(" * 400 + "true" + ")" * 400,
        "+".join(["1"] * 400) + " > 0",
        "99999999999999999999 > 0",
        "packet.to.exists(x, packet.to.exists(y, x == y))",
        "packet.to.map(x, x) == []",
        'approved_by("lead", 1111111111111111111111)',
    ],
)
def test_an_expression_that_breaks_out_or_off_is_refused(text: str) -> None:
    with pytest.raises(ContractInvalid, match=r"rules\[0\]\.require"):
        contract_of(HEAD + rule("a", text))


@pytest.mark.parametrize(
    "text", ["1 / content.cents == 1", "1 % content.cents == 1", "int(1e300) > 0", "packet.to[7] != ''"]
)
def test_an_expression_that_fails_refuses(text: str) -> None:
    assert rule_of(room(contract_of(HEAD + rule("a", text))).action()) == "a"
