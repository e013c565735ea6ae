"""What the rules of a team read, and what they refuse: evidence, approvals, counters, recipients, time."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from apc_contracts import MessagePayload, Packet
from apc_contracts.contract.contract import Contract
from apc_contracts.errors import ContractInvalid
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Refusal, Verdict, VerdictKind

from . import conftest
from .conftest import Simulation
from .room import INCIDENT, Room, agent, contract_of, registry, rules

HEAD = "name: t\nextends: task\nrules:\n"
THURSDAY_9 = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)


def room(contract: Contract | None = None) -> Room:
    """Open a session of the room."""
    return Room(Simulation(contract or contract_of(), registry=registry(), now=THURSDAY_9))


def refused(sent: tuple[Packet, Verdict]) -> Refusal:
    """Return why a packet was refused."""
    refusal = sent[1].refusal
    assert refusal is not None, "it was accepted"
    return refusal


def rule_of(sent: tuple[Packet, Verdict]) -> str:
    """Return the rule that refused a packet."""
    refusal = refused(sent)
    assert refusal.code == "RULE_FAILED", refusal
    return refusal.rule


# Evidence.


def test_findings_of_both_investigators_carry_an_action() -> None:
    incident = room()
    incident.accept(incident.action([incident.finding("logs"), incident.finding("metrics")]))
    incident.accept(incident.decision([incident.finding("logs"), incident.finding("metrics")], note="as a decision"))


def test_a_refusal_says_rule_values_and_remedy() -> None:
    incident = room()
    refusal = refused(incident.action([incident.finding("logs")]))
    assert (refusal.code, refusal.rule, refusal.path) == ("RULE_FAILED", "two-witnesses", "payload")
    assert refusal.message == "An action needs a finding of both investigators about its service."
    assert refusal.remedy == "Cite both findings as evidence."
    assert refusal.values == {
        'authors("finding/1", "service")': 1,
        'cites_role("logs")': True,
        'cites_role("metrics")': False,
    }
    assert Refusal.of(refusal.document) == refusal


def test_what_does_not_count_as_evidence() -> None:
    incident = room(rules('authors("finding/1") >= 1', only="[alert/1, finding/1, action/1, outcome/1]"))
    addressed_to_another = incident.finding("logs", to="scribe")
    own = incident.accept(incident.message("fixer", "finding/1", {"service": "api"}, "fixer"))
    stale_ground = incident.finding("logs")
    stale = incident.accept(
        incident.message("metrics", "finding/1", {"service": "api"}, ("fixer", "metrics"), [stale_ground])
    )
    for evidence in ((), ["trust me"], [addressed_to_another], [own], ["sha256:" + "0" * 64]):
        assert rule_of(incident.action(evidence)) == "r0"
    incident.accept(incident.action([stale], note="before"))
    incident.retract(stale_ground)
    assert rule_of(incident.action([stale], note="after")) == "r0"


def test_unknown_evidence_is_refused_by_name() -> None:
    incident = room(rules("true"))
    refused_packet = incident.message("logs", "finding/1", {"service": "api"}, "nobody")[0]
    retracted = incident.finding("metrics")
    incident.retract(retracted)
    known = incident.finding("logs")
    for evidence, why in (
        (uuid4(), "is no packet of this session"),
        (refused_packet, "was refused"),
        (retracted, "was retracted"),
        ("packet:0", "is no packet id"),
        (f"PACKET:{{{uuid4()}}}", "is no packet id"),
    ):
        refusal = refused(incident.action([known, evidence]))
        assert (refusal.code, refusal.path) == ("EVIDENCE_UNKNOWN", "proof_bundle.evidence_refs[1]")
        assert why in refusal.message
    incident.accept(incident.action([known, "a note"]))


def test_kept_fields_are_compared() -> None:
    incident = room(rules('authors("finding/1", "service") >= 1'))
    other, same = incident.finding("logs", "mail"), incident.finding("logs", "api")
    assert rule_of(incident.action([other])) == "r0"
    incident.accept(incident.action([other, same]))


def test_authors_of_one_broker_user_are_one_where_users_are_separate() -> None:
    incident = room(rules('authors("finding/1") >= 2'))
    users = incident.simulation.registry
    users["metrics"] = replace(users["metrics"], broker_user="agent.logs")
    assert rule_of(incident.action([incident.finding("logs"), incident.finding("metrics")])) == "r0"
    agents = [name for name, one in users.items() if one.has_inbox and name != "orchestrator"]
    users |= {name: replace(users[name], broker_user="agent.logs") for name in agents}
    incident.accept(incident.action([incident.finding("logs"), incident.finding("metrics")], note="one process"))


def test_nobody_is_its_own_witness_by_another_id() -> None:
    incident = room(rules('authors("finding/1") >= 2'))
    users = incident.simulation.registry
    for name in ("helper", "metrics"):
        users[name] = replace(users[name], broker_user="agent.fixer")
    found = [incident.finding("helper", to="fixer"), incident.finding("metrics"), incident.finding("logs")]
    assert rule_of(incident.action(found)) == "r0", "two of the three speak by its own user"


def test_old_keys_of_a_counter_make_room() -> None:
    incident = room(rules('count("acts") < 3', counters="{acts: {for: action/1, by: content.service, within: 1h}}"))
    for index in range(64):
        incident.accept(incident.action(service=f"s{index}"))
    assert rule_of(incident.action(service="new")) == "counter-keys"
    incident.simulation.now += timedelta(hours=1, minutes=2)
    incident.accept(incident.action(service="new"))


def test_what_rules_read_has_a_bound() -> None:
    incident = room(
        rules(
            *[f'content.cents < {index} || "scribe" in packet.to_roles' for index in range(1, 12)],
            *[f'cites("agent-{index:02}-{"x" * 90}") || true' for index in range(20)],
        )
    )
    assert rule_of(incident.action()) == "values"


# Approvals.


def ready(contract: Contract | None = None) -> tuple[Room, list[Packet]]:
    """Return a room with both findings."""
    incident = room(contract)
    return incident, [incident.finding("logs"), incident.finding("metrics")]


def test_an_approval_carries_exactly_what_was_approved() -> None:
    incident, found = ready()
    incident.approved()
    assert rule_of(incident.action(found, risk="high", note="added later")) == "lead-approves-risk"
    assert rule_of(incident.action(found, risk="high", service="api ")) in ("two-witnesses", "lead-approves-risk")
    incident.accept(incident.action(found, risk="high"))


def test_an_approval_is_used_up() -> None:
    incident, found = ready(contract_of(INCIDENT.replace("< 1", "< 5")))
    incident.approved()
    incident.accept(incident.decision(found, risk="high"))
    assert rule_of(incident.action(found, risk="high")) == "lead-approves-risk"
    incident.approved("max")
    incident.accept(incident.action(found, risk="high"))


def test_a_rule_may_leave_approvals_valid() -> None:
    text = INCIDENT.replace("< 1", "< 5").replace(
        'require: approved_by("lead")', 'require: approved_by("lead")\n    reuse: true'
    )
    incident, found = ready(contract_of(text))
    incident.approved()
    for _ in range(2):
        incident.accept(incident.decision(found, risk="high"))


def test_whose_approval_does_not_count() -> None:
    incident, found = ready()

    def act() -> tuple[Packet, Verdict]:
        return incident.action(found, risk="high")

    incident.accept(incident.answer(incident.ask(), approves=False))
    assert rule_of(act()) == "lead-approves-risk", "denied"
    incident.approved(sender="helper")
    assert rule_of(act()) == "lead-approves-risk", "another agent asked"
    incident.approved(risk="low")
    assert rule_of(act()) == "lead-approves-risk", "about something else"
    question = incident.ask()
    incident.accept(incident.answer(question))
    incident.retract(question)
    assert rule_of(act()) == "lead-approves-risk", "the question was taken back"
    incident.approved("max")
    incident.accept(act())


def test_a_later_denial_takes_an_approval_back() -> None:
    incident, found = ready()
    incident.approved("ida")
    incident.accept(incident.answer(incident.ask(), "ida", approves=False))
    assert rule_of(incident.action(found, risk="high")) == "lead-approves-risk"
    incident.approved("max")
    incident.accept(incident.answer(incident.ask(), "ida", approves=False))
    incident.accept(incident.action(found, risk="high"))  # nobody takes back what another has approved


def test_who_lost_the_role_or_speaks_for_a_member_approves_nothing() -> None:
    incident, found = ready()
    incident.approved()
    people = incident.simulation.registry
    lead = people["ida"]
    for changed in (replace(lead, role="clerk"), replace(lead, is_revoked=True), agent("ida", "lead")):
        people["ida"] = changed
        assert rule_of(incident.action(found, risk="high")) == "lead-approves-risk"
    people["ida"] = lead
    people["helper"] = replace(people["helper"], broker_user="web")
    assert rule_of(incident.action(found, risk="high")) == "lead-approves-risk", "its user speaks for helper"
    people["helper"] = agent("helper", "fixer")
    incident.accept(incident.action(found, risk="high"))


def test_an_answer_after_the_deadline_counts_for_nothing() -> None:
    """Also when the gate was away: the judged time decides, not the timer."""
    incident, found = ready()
    question = incident.ask(minutes=5)
    incident.simulation.now += timedelta(minutes=6)
    incident.accept(incident.answer(question))
    assert rule_of(incident.action(found, risk="high")) == "lead-approves-risk"


def test_two_approvals_are_of_two_people() -> None:
    incident = room(rules('approved_by("lead", 2)'))
    incident.approved("ida")
    incident.approved("ida")
    assert rule_of(incident.action(risk="high")) == "r0"
    incident.approved("max")
    incident.accept(incident.action(risk="high"))
    assert rule_of(incident.action(risk="high")) == "r0", "both are used up"


# Counters, recipients, budgets, time.


def test_a_counter_counts_what_was_accepted_alone() -> None:
    incident, found = ready()
    incident.approved()
    assert rule_of(incident.action(found[:1], risk="high")) == "two-witnesses"
    incident.accept(incident.action(found, risk="high"))
    incident.approved("max")
    assert rule_of(incident.action(found, risk="high")) == "one-risky-action"
    incident.accept(incident.action(found, note="low risk"))


def test_amounts_add_up() -> None:
    incident = room(rules('sum("paid") + content.cents <= 500', counters="{paid: {for: action/1, add: content.cents}}"))
    incident.accept(incident.action(cents=200))
    assert rule_of(incident.action(cents=301)) == "r0"
    incident.accept(incident.action(cents=300))
    assert rule_of(incident.action(cents=1)) == "r0"


def test_an_amount_that_may_be_absent_cannot_be_added() -> None:
    with pytest.raises(ContractInvalid, match="may be absent: make it a required field"):
        contract_of("name: t\nextends: task\ncounters: {paid: {for: action/1, add: content.amount}}")


def spending(by: str = "session", within: str = "") -> Room:
    """A room in which an agent may act three times, by a key."""
    counters = f"{{acts: {{for: action/1, by: {by}{within}}}}}"
    return room(rules('count("acts") < 3', counters=counters))


@pytest.mark.parametrize("by", ["session", "sender", "recipient", "content.service"])
def test_a_counter_has_a_key(by: str) -> None:
    incident = spending(by)
    for index in range(3):
        incident.accept(incident.action(note=str(index)))
    assert rule_of(incident.action(note="4")) == "r0"
    helper = incident.action(sender="helper")
    assert (helper[1].refusal is None) == (by == "sender")
    other = incident.action(service="mail")
    assert (other[1].refusal is None) == (by == "content.service")
    assert "mail" not in incident.simulation.session.document.encode().decode(), "contents are hashed"


def test_a_counter_forgets_what_is_too_old() -> None:
    incident = spending(within=", within: 1h")
    for index in range(3):
        incident.accept(incident.action(note=str(index)))
        incident.simulation.now += timedelta(minutes=10)
    incident.simulation.now += timedelta(minutes=29)
    assert rule_of(incident.action(note="in the hour")) == "r0"
    incident.simulation.now += timedelta(minutes=3)
    incident.accept(incident.action(note="after it"))


def test_a_full_counter_refuses_by_name() -> None:
    incident = spending("content.service")
    for index in range(64):
        incident.accept(incident.action(service=f"s{index}"))
    refusal = refused(incident.action(service="one more"))
    assert (refusal.rule, refusal.path) == ("counter-keys", "team.counters.acts")
    incident.accept(incident.action(service="s1"))
    incident.accept(incident.action(sender="helper", service="its own share"))


def test_recipients_are_read_by_registration() -> None:
    incident = room(rules('packet.to_roles == ["scribe"] && packet.to_swarms == ["scribe"] && packet.to == ["scribe"]'))
    incident.accept(incident.action())
    everybody = incident.message(
        "fixer", "action/1", {"service": "api", "risk": "low", "cents": 0}, ("scribe", "helper")
    )
    assert rule_of(everybody) == "r0"


def test_the_hour_is_that_of_the_zone() -> None:
    incident = room(rules("local.hour == 10 && local.weekday == 4", zone="Europe/Berlin"))
    incident.accept(incident.action())
    incident.simulation.now += timedelta(hours=1)
    assert rule_of(incident.action(note="11:30")) == "r0"


def test_session_sender_and_content_are_read() -> None:
    incident = room(
        rules(
            'sender.role == "fixer" && sender.swarm == "fixer" && sender.id in ["fixer", "helper"]',
            'session.state == "WORKING" && session.round == 1 && session.age_s < 60',
            'packet.type in ["MESSAGE", "DECISION"] && packet.schema == "action/1" && packet.confidence >= 0.5',
            '!has(content.note) || content.note != "no"',
            "!has(content.tags) || content.tags.all(tag, size(tag) < 3)",
            "spent.packets < 5",
            'effect("refund") == "absent"',
        )
    )
    incident.accept(incident.action(tags=["a", "b"]))
    assert rule_of(incident.action(note="no")) == "r3"
    assert rule_of(incident.action(tags=["abc"])) == "r4"
    incident.simulation.pass_time(seconds=60)
    assert rule_of(incident.action(note="late")) == "r1"


def test_only_these_schemas_may_be_sent() -> None:
    incident = room(rules("true", only="[alert/1, action/1]"))
    refusal = refused(incident.message("logs", "finding/1", {"service": "api"}, "fixer"))
    assert (refusal.rule, refusal.path) == ("only", "payload.schema")


def test_rules_that_warn_and_observe_let_a_packet_through() -> None:
    text = "name: t\nextends: task\nrules:\n" + "".join(
        f"  - {{name: {mode}-it, for: action/1, require: 'content.risk == \"low\"', mode: {mode}}}\n"
        for mode in ("warn", "observe")
    )
    incident = room(contract_of(text))
    _, verdict = incident.action(risk="high")
    assert verdict.kind is VerdictKind.ACCEPTED
    assert [one.rule for one in verdict.warnings] == ["warn-it"]
    assert (verdict.facts["warnings"], verdict.facts["observed"]) == (["warn-it"], ["observe-it"])


def test_an_error_in_when_refuses() -> None:
    text = f"{HEAD}  - {{name: a, for: action/1, when: '1 / size(content.service) > 0', require: 'true'}}"
    incident = room(contract_of(text))
    incident.accept(incident.action())
    long = "x" * 65
    assert refused(incident.action(service=long)).code in ("CONTENT_INVALID", "RULE_FAILED")


def test_control_packets_are_judged_only_when_a_rule_names_them() -> None:
    rule = "{name: no-retractions, for: {type: RETRACTION}, require: 'sender.role == \"lead\"'}"
    text = f"{HEAD}  - {rule}"
    incident = room(contract_of(text))
    finding = incident.finding()
    with pytest.raises(AssertionError, match="no-retractions"):
        incident.retract(finding)


def test_a_verdict_from_before_words_were_approved_is_judged_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of 0.1.0 have no `packet.words`: the approval was of the content alone, and the packet used it up."""
    incident = room(rules('approved_by("lead")'))
    for who in ("ida", "max"):
        incident.approved(who)
    content = {"service": "api", "risk": "high", "cents": 0}
    worded = MessagePayload.model_validate({"schema": "action/1", "content": content, "text": "Roll back."})
    asked = 'approved_by("lead")'
    records: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
        ({asked: ["ida"]}, {asked: ["ida"]}),
        ({asked: []}, None),  # ida's is used up
        ({asked: [], "packet.words": True}, None),
        ({asked: ["max"], "packet.words": True}, None),  # nobody approved these words
        ({asked: ["max"]}, {asked: ["max"]}),
    ]
    for recorded, found in records:
        with monkeypatch.context() as replayed:
            replayed.setattr(conftest, "Facts", partial(Facts, rules=recorded))
            _, verdict = incident.send("fixer", worded, "scribe")
        assert (verdict.kind is VerdictKind.ACCEPTED) is (found is not None), recorded
        if found is not None:
            assert verdict.facts["rules"] == found, "nothing is noted that the record does not have"
    _, verdict = incident.send("fixer", worded, "scribe")
    assert verdict.refusal is not None and verdict.refusal.rule == "r0", "by the rules of today it is another proposal"
