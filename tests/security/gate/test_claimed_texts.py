"""A text that a rule reads is put into the artifact store: the gate would judge its hash, the recipient read it."""

from hashlib import sha256
from typing import Any

import pytest
from tests.contracts.session.room import SCHEMAS, Room
from tests.contracts.session.test_team_rules import room

from apc_contracts import DecisionPayload, MessagePayload
from apc_contracts.admission.rules import team
from apc_contracts.claim_check import redeem
from apc_contracts.contract.contract import Contract, task_contract
from apc_contracts.contract.overlay import read_overlay, write_out
from apc_contracts.judging.verdict import Verdict
from apc_contracts.payloads.by_type import Result
from apc_contracts.vocabulary import CommitmentLevel

ACTION: dict[str, Any] = {"service": "api", "risk": "low", "cents": 0, "note": "n", "tags": ["a"]}
COUNTED = "{acts: {for: action/1, by: content.service}}"
_TEXT = {"type": "string"}
_FIELDS = {"service": _TEXT, "note": _TEXT, "tags": {"type": "array", "items": _TEXT, "maxItems": 8}}
_ACTION = SCHEMAS["action/1"]
WIDE = {**SCHEMAS, "action/1": _ACTION | {"properties": _ACTION["properties"] | _FIELDS}}
"""Texts without a bound of their length, as a pydantic `str` has none: a hash of 71 characters fits in."""


def rules(require: str, *, mode: str = "enforce", counters: str = "{}") -> Contract:
    """Return a contract with one rule for actions whose texts have no bound."""
    rule = f"{{name: r0, for: action/1, mode: {mode}, require: '{require}'}}"
    text = f"name: tried\nextends: task\ncounters: {counters}\nrules:\n  - {rule}\n".encode()
    return write_out(read_overlay(text), text, task_contract(), WIDE)


def action(content: dict[str, Any], *, is_decision: bool) -> MessagePayload | DecisionPayload:
    """Return an action as a message, or as the result of a decision."""
    typed = {"schema": "action/1", "content": content}
    if not is_decision:
        return MessagePayload.model_validate(typed)
    return DecisionPayload(
        decision_id="act",
        recommendation="act",
        priority_distribution={},
        next_actions=(),
        commitment_level=CommitmentLevel.EXECUTING,
        result=Result.model_validate(typed),
    )


def take(incident: Room, field: str, text: str, *, is_decision: bool = False, **changed: Any) -> Verdict:
    """Send an action with one text as a hash; return the verdict. Its recipient reads the text."""
    digest = f"sha256:{sha256(text.encode()).hexdigest()}"
    name = field.split("/")[0]
    content = ACTION | {name: [digest] if name == "tags" else digest}
    path = f"/payload/{'result/' if is_decision else ''}content/{field}"
    note = {"path": path, "hash": digest, "size": len(text), "media_type": "text/plain; charset=utf-8"} | changed
    packet = incident.simulation.build(
        "fixer", action(content, is_decision=is_decision), "scribe", version="apc/1.1", metadata={"claim_check": [note]}
    )
    if not changed:
        read = redeem(packet, {digest: text.encode()}).payload
        got = read.result if isinstance(read, DecisionPayload) else read
        assert isinstance(got, MessagePayload | Result)
        assert got.content[name] in (text, (text,), [text])
    return incident.simulation.take(packet)


def send(incident: Room, field: str, text: str, **changed: Any) -> str | None:
    """Send an action with one text as a hash; return the rule that refused it."""
    refusal = take(incident, field, text, **changed).refusal
    return None if refusal is None else refusal.rule


def unguard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the gate judge hashes."""
    monkeypatch.setattr(team, "claimed_places", lambda packet: [])


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("is_decision", [False, True])
@pytest.mark.parametrize(
    ("require", "field", "text"),
    [
        ('content.service != "prod"', "service", "prod"),
        ('!has(content.note) || !content.note.contains("secret")', "note", "a secret " * 200),
        ('!has(content.tags) || !("prod" in content.tags)', "tags/0", "prod"),
    ],
)
def test_a_rule_judges_no_hash_in_the_place_of_a_text(
    require: str, field: str, text: str, is_decision: bool, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_guarded:
        unguard(monkeypatch)
    found = send(room(rules(require)), field, text, is_decision=is_decision)
    assert found == ("claimed-texts" if is_guarded else None)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_hash_opens_no_second_key_of_a_counter(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_guarded:
        unguard(monkeypatch)
    incident = room(rules('count("acts") < 1', counters=COUNTED))
    incident.accept(incident.action())
    assert send(incident, "service", "api") == ("claimed-texts" if is_guarded else None)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_people_approve_no_text_that_they_do_not_see(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_guarded:
        unguard(monkeypatch)
    incident = room(rules('approved_by("lead")'))
    incident.approved(**ACTION | {"note": f"sha256:{sha256(b'pay mallory').hexdigest()}"})
    assert send(incident, "note", "pay mallory") == ("claimed-texts" if is_guarded else None)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_broken_list_hides_every_text(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipient that does not use the SDK may put the text back all the same."""
    if not is_guarded:
        unguard(monkeypatch)
    found = send(room(rules('content.service != "prod"')), "service", "prod", media_type="text/html")
    assert found == ("claimed-texts" if is_guarded else None)


def test_a_text_that_no_rule_reads_may_be_in_the_store() -> None:
    incident = room(rules('content.risk == "low"'))
    assert send(incident, "note", "long " * 1_000) is None


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_rule_that_only_warns_takes_no_hash_for_a_text(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_guarded:
        unguard(monkeypatch)
    verdict = take(room(rules('content.service != "prod"', mode="warn")), "service", "prod")
    assert verdict.refusal is None
    assert [one.rule for one in verdict.warnings] == (["r0"] if is_guarded else [])
