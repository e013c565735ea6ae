"""Rules of teams at a terminal: check an overlay, run its tests, show and compare rules, begin one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from apc_agents.team import Team, load_team
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.connections import holds_database, open_log
from apc_cli.errors import InputUnusable
from apc_contracts.contract.collection import load_contracts
from apc_contracts.contract.contract import Contract
from apc_contracts.contract.expressions import MAX_COST
from apc_contracts.contract.file import Subject
from apc_contracts.contract.omissions import omissions
from apc_contracts.contract.overlay import Overlay, read_overlay
from apc_contracts.contract.rules import Counter, Rule
from apc_contracts.contract.rules import Team as TeamOfRules
from apc_contracts.replay.examination import Examined, examine
from apc_contracts.replay.what_if import Trial
from apc_contracts.text import numbered
from apc_contracts.vocabulary import PacketType
from apc_log.queries.replay import Tried, read_recorded, try_contract
from apc_log.registry import read_contracts, read_registry, read_schemas


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an overlay can name: contracts, schemas, roles; from the log where there is one, and from a team."""

    parents: Mapping[str, bytes]
    schemas: Mapping[str, Mapping[str, Any]]
    roles: frozenset[str] | None
    """None = not known."""
    team: Team | None
    has_log: bool

    def examine(self, body: bytes, file: Path | str) -> Examined:
        """Check a file and run its tests. Raises ContractInvalid."""
        is_blind = not self.has_log and self.team is None
        return examine(body, file, self.parents, self.schemas, self.roles, guesses=is_blind)


async def read_surroundings(team_name: str | None = None) -> Surroundings:
    """Return what an overlay can name here.

    Raises:
        ContractInvalid: a contract of the deployment cannot be used.
        AgentNotFound, AgentInvalid: no such team.
        InputUnusable, ServiceAway: the log that is configured cannot be read.
    """
    settings = BusSettings()
    known = load_contracts(settings.contract, settings.contracts)
    parents = {name: contract.body for name in known.names if (contract := known.named(name)) is not None}
    schemas: dict[str, Mapping[str, Any]] = {}
    roles: frozenset[str] | None = None
    team = None if team_name is None else load_team(team_name)
    has_log = DatabaseSettings().url is not None or holds_database(settings.data_dir)
    if has_log:
        async with open_log() as pool:
            registered = {one.name: one.document.encode() for one in await read_contracts(pool)}
            schemas |= {name: one.document for name, one in (await read_schemas(pool)).items()}
            people = [one for one in (await read_registry(pool)).values() if not one.is_revoked]
        parents = registered | {known.default.name: known.default.body} | parents | registered
        roles = frozenset(one.role for one in people) or None
    if team is not None:
        schemas |= team.documents
        roles = None if roles is None else roles | {agent.role for agent in team.agents}
    return Surroundings(parents, schemas, roles, team, has_log)


# What `apc contract check` and `test` print.


def summary(examined: Examined, body: bytes, around: Surroundings) -> Iterator[str]:
    """Yield the lines of `apc contract check` behind the first: what is left out, costs, tests, warnings."""
    yield from (f"warning: {one}" for one in omissions(examined.contract))
    team = examined.contract.team
    if team is None:
        return
    counted = f"{numbered(len(team.rules), 'rule')}, {numbered(len(team.counters), 'counter')}"
    yield f"{counted}; a packet may cost {team.cost:,} of {MAX_COST:,} steps"
    passed = sum(one.has_passed for one in examined.tests)
    yield f"{passed} of {numbered(len(examined.tests), 'test')} passed"
    yield from (f"warning: {one}" for one in unruled_versions(team, around.schemas))
    if examined.is_overlay:
        yield from (f"warning: {one}" for one in warnings(examined, read_overlay(body), around))


def warnings(examined: Examined, overlay: Overlay, around: Surroundings) -> Iterator[str]:
    """Yield what is allowed in an overlay and probably not meant."""
    team = examined.contract.team
    assert team is not None, "an overlay makes a team"
    if examined.guessed:
        names = ", ".join(examined.guessed)
        yield f"no database and no --team here: the types of {names} were taken from the tests"
    own = {rule.name for rule in overlay.rules}
    rules = [rule for rule in team.rules if rule.name in own]
    if around.team is not None:
        yield from _unsent(rules, around.team)
    for rule in rules:
        if not any(rule.name in result.failed for result in examined.tests):
            yield f"rule {rule.name}: no test fails it"
        if not any(rule.name in result.held for result in examined.tests):
            yield f"rule {rule.name}: no test meets it"
    yield from _open_evidence(rules, team)
    if around.roles is None and overlay.roles is None:
        yield from _unchecked_roles(rules, around.team)


def unruled_versions(team: TeamOfRules, schemas: Iterable[str]) -> Iterator[str]:
    """Yield other versions of schemas with rules that members may send and no rule is for: `action/2` of `action/1`."""
    ruled = {subject.schema_ for rule in team.rules for subject in rule.subjects if subject.schema_ is not None}
    names = {schema.rpartition("/")[0]: schema for schema in sorted(ruled)}
    for schema in sorted(set(schemas) - ruled):
        alike = names.get(schema.rpartition("/")[0])
        is_open = alike is not None and (team.file.only is None or schema in team.file.only)
        if is_open and not any(team.rules_for(schema, kind) for kind in (PacketType.MESSAGE, PacketType.DECISION)):
            remedy = f"add {schema} to `for`, or list in `only` what members may send"
            yield f"{alike} has rules, {schema} has none, and members may send it: {remedy}"


def _unsent(rules: Iterable[Rule], team: Team) -> Iterator[str]:
    for rule in rules:
        for subject in rule.subjects:
            if subject.schema_ is not None and subject.schema_ not in team.models:
                yield f"rule {rule.name}: nobody of {team.name} sends {subject.schema_}"


def _open_evidence(rules: Iterable[Rule], team: TeamOfRules) -> Iterator[str]:
    """Yield rules that want evidence of a schema which everybody may send, also a helper of the sender."""
    kept_to_some = {
        subject.schema_
        for rule in team.rules
        if rule.mode == "enforce" and any(reading.name.startswith("sender.") for reading in rule.readings)
        for subject in rule.subjects
    }
    for rule in rules:
        wanted = {str(one.arguments[0]) for one in rule.readings if one.name in ("cited", "authors")}
        names_who = any(one.name in ("cites", "cites_role", "cites_swarm") for one in rule.readings)
        for schema in sorted(wanted - kept_to_some):
            if not names_who:
                remedy = f"add cites_role(…), or a rule for {schema} that requires sender.role"
                yield f"rule {rule.name}: the sender's role may send {schema} itself: {remedy}"


_OF_ROLES = frozenset({"cites_role", "approved_by"})
"""Functions whose first argument is a role."""


def _unchecked_roles(rules: Iterable[Rule], team: Team | None) -> Iterator[str]:
    known = set() if team is None else {agent.role for agent in team.agents}
    named: set[str] = set()
    for expression in (one for rule in rules for one in (rule.when, rule.require) if one is not None):
        named |= {str(one.arguments[0]) for one in expression.readings if one.name in _OF_ROLES}
        named |= expression.compared_with("sender.role") | expression.compared_with("packet.to_roles")
    named -= known
    if named:
        roles = ", ".join(sorted(named))
        yield f"nobody here knows the roles {roles}: list all that there are in `roles`, or they are not checked"


# `apc contract try`.

_TIME = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


async def try_on_log(contract: Contract, run_id: str | None, since: str | None) -> tuple[Tried, Trial]:
    """Judge the sessions of a run, or those that began within a time, by a contract.

    Raises:
        InputUnusable: no such time, or the log has no session there.
    """
    span = None if since is None else _TIME.fullmatch(since)
    if since is not None and span is None:
        raise InputUnusable(f"--since is a whole number and m, h or d, like 7d, not {since!r}")
    settings = BusSettings()
    known = load_contracts(settings.contract, settings.contracts)
    available = [found for name in known.names if (found := known.named(name)) is not None]
    trial = Trial(contract)
    async with open_log() as pool, read_recorded(pool) as records:
        if span is None:
            sessions = await records.sessions(run_id or "")
        else:
            sessions = await records.sessions_since(datetime.now(UTC) - int(span.group(1)) * _UNITS[span.group(2)])
        if not sessions:
            raise InputUnusable(f"there is no session {'of run ' + repr(run_id) if span is None else 'since then'}")
        tried = await try_contract(records, sessions, available, trial, contract.coordinator)
    return tried, trial


# Rules as a person reads them.


def rules_in_words(contract: Contract) -> Iterator[str]:
    """Yield the rules of a contract, line by line."""
    team = contract.team
    if team is None:
        yield f"{contract.name} has no rules of a team; `apc contract explain {contract.name}` says what it checks."
        return
    *parents, _ = team.file.chain
    over = " and ".join(link.name for link in reversed(parents))
    yield f"{contract.name} over {over}, written out: a later {parents[-1].name} changes nothing here."
    yield from (f"  {link.name}: sha256 {link.hash}" for link in team.file.chain)
    if team.file.only is not None:
        yield f"Only these schemas may be sent: {', '.join(team.file.only)}."
    for schema, fields in team.kept.items():
        yield f"Remembered of {schema}: {', '.join(fields)}."
    if team.counters:
        yield "Counters, of accepted packets"
        yield from (f"  {_counter(counter)}" for counter in team.counters)
    if team.rules:
        yield "Rules, in this order; the first that fails decides"
        for rule in team.rules:
            yield from _rule(rule)
    if any(reading.name.startswith("local.") for one in team.expressions for reading in one.readings):
        yield f"Hours and weekdays are those of {team.file.zone}."


def _counter(counter: Counter) -> str:
    what = f"adds {counter.add} of" if counter.add is not None else "counts"
    when = "" if counter.when is None else f" when {counter.when.text}"
    within = "" if counter.within_ms is None else f", within {counter.within_ms / 1000:g} s"
    return f"{counter.name}: {what} {_subjects(counter.subjects)}{when}, by {counter.by}{within}"


def _rule(rule: Rule) -> Iterator[str]:
    mode = "" if rule.mode == "enforce" else f" ({rule.mode} only)"
    yield f"  {rule.name}{mode}: {_subjects(rule.subjects)}"
    if rule.when is not None:
        yield f"    when {rule.when.text}"
    yield f"    needs {rule.require.text}"
    expressions = [one for one in (rule.when, rule.require) if one is not None]
    read = dict.fromkeys(reading.text for expression in expressions for reading in expression.readings)
    yield f"    reads {', '.join(read) or 'nothing'}"
    if rule.say is not None:
        yield f"    {rule.say}"
    if rule.remedy is not None:
        yield f"    Remedy: {rule.remedy}"
    if rule.reuse:
        yield "    An approval holds for several packets."


def _subjects(subjects: Iterable[Subject]) -> str:
    names = (" ".join(str(one) for one in (subject.type, subject.schema_) if one is not None) for subject in subjects)
    return " or ".join(names)


# Two contracts compared.

_NOT_COMPARED = frozenset({"name", "comments", "$schema", "refusals"})
_OF_TEAM = frozenset({"chain", "types"})
_ABSENT = object()


def differences(first: Contract, second: Contract) -> Iterator[str]:
    """Yield what the second contract has added, dropped and changed."""
    before, after = _flat(first), _flat(second)
    for place in [*before, *(place for place in after if place not in before)]:
        old, new = before.get(place, _ABSENT), after.get(place, _ABSENT)
        if old is _ABSENT:
            yield f"added    {place}: {_text(new)}"
        elif new is _ABSENT:
            yield f"dropped  {place}: {_text(old)}"
        elif old != new:
            yield f"changed  {place}: {_text(old)} -> {_text(new)}"


def _flat(contract: Contract) -> dict[str, Any]:
    """Return place -> value; a rule is one value, named things of a list stand under their names."""
    document = contract.file.model_dump(mode="json", by_alias=True, exclude_none=True)
    team = document.pop("team", None) or {}
    flat: dict[str, Any] = {}
    flat |= {f"rule {rule['name']}": _rule_values(rule) for rule in team.pop("rules", ())}
    flat |= {f"counter {name}": counter for name, counter in team.pop("counters", {}).items()}
    for name, value in team.items():
        if name not in _OF_TEAM and value:
            _flatten(name, value, flat)
    for name, value in document.items():
        if name not in _NOT_COMPARED:
            _flatten(name, value, flat)
    return flat


def _rule_values(rule: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rule.items() if name != "name" and value not in (False, "enforce")}


def _flatten(place: str, value: Any, flat: dict[str, Any]) -> None:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "name" in one for one in value):
        value = {one["name"]: {key: item for key, item in one.items() if key != "name"} for one in value}
    if not isinstance(value, dict) or not value:
        flat[place] = value
        return
    for name, one in value.items():
        _flatten(f"{place}.{name}", one, flat)


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{name} {_subject_names(one) if name == 'for' else one}" for name, one in value.items())


def _subject_names(subjects: Any) -> str:
    return " or ".join(" ".join(str(name) for name in one.values()) for one in subjects)


# A new overlay.

_HEAD = """\
# Rules for a team: `apc contract check {name}.yml` and `apc contract test {name}.yml`; docs/reference/rules.md.
name: {name}
extends: task
"""
KINDS: Mapping[str, str] = {
    "approvals": """\
rules:
  - name: lead-approves
    for: action/1
    when: 'content.risk == "high"'
    require: approved_by("lead")
    say: A risky action needs the word of a lead.
    remedy: Ask a lead about exactly this action.
  - name: nobody-acts-on-its-own-request
    for: action/1
    require: authors("request/1") >= 1
    say: An action needs a request of somebody else.
    remedy: Cite the request as evidence.
tests:
  - name: a lead has approved
    packet:
      schema: action/1
      from: fixer
      content: {risk: high}
      evidence: [{schema: request/1, from: desk, content: {text: roll back}}]
      approvals: [{by: ida, role: lead}]
    accepted: true
  - name: nobody was asked
    packet:
      schema: action/1
      from: fixer
      content: {risk: high}
      evidence: [{schema: request/1, from: desk, content: {text: roll back}}]
    refused: lead-approves
  - name: there is no request
    packet: {schema: action/1, from: fixer, content: {risk: low}}
    refused: nobody-acts-on-its-own-request
""",
    "investigation": """\
keep: {finding/1: [service]}
rules:
  - name: two-sources
    for: action/1
    require: authors("finding/1", "service") >= 2
    say: An action needs two findings about its service.
    remedy: Cite the findings of two agents about the same service.
  - name: only-investigators-find
    for: finding/1
    require: sender.role in ["logs", "metrics"]
tests:
  - name: both have found it
    packet:
      schema: action/1
      from: fixer
      content: {service: api}
      evidence:
        - {schema: finding/1, from: logs, content: {service: api}}
        - {schema: finding/1, from: metrics, content: {service: api}}
    accepted: true
  - name: one finding is about another service
    packet:
      schema: action/1
      from: fixer
      content: {service: api}
      evidence:
        - {schema: finding/1, from: logs, content: {service: api}}
        - {schema: finding/1, from: metrics, content: {service: db}}
    refused: two-sources
  - packet: {schema: finding/1, from: logs, content: {service: api}}
    accepted: true
  - packet: {schema: finding/1, from: fixer, content: {service: api}}
    refused: only-investigators-find
""",
    "spending": """\
counters:
  paid: {for: payment/1, add: content.amount}
rules:
  - name: session-limit
    for: payment/1
    require: content.amount >= 0 && sum("paid") + content.amount <= 1000
    say: A session pays at most 1000.
    remedy: Open another session, or pay less.
  - name: known-payees
    for: payment/1
    require: content.payee in ["power", "water"]
tests:
  - packet: {schema: payment/1, from: cashier, content: {amount: 400, payee: power}}
    before: [{schema: payment/1, from: cashier, content: {amount: 600, payee: water}}]
    accepted: true
  - packet: {schema: payment/1, from: cashier, content: {amount: 401, payee: power}}
    before: [{schema: payment/1, from: cashier, content: {amount: 600, payee: water}}]
    refused: session-limit
  - packet: {schema: payment/1, from: cashier, content: {amount: -400, payee: power}}
    refused: session-limit
  - packet: {schema: payment/1, from: cashier, content: {amount: 1, payee: casino}}
    refused: known-payees
""",
    "plain": """\
rules:
  - name: result-rests-on-evidence
    for: result/1
    require: cited("note/1") >= 1
    say: A result rests on a note of somebody else.
    remedy: Cite the note as evidence.
  - name: writers-write
    for: note/1
    require: sender.role == "writer"
tests:
  - packet:
      schema: result/1
      from: lead
      content: {text: done}
      evidence: [{schema: note/1, from: writer, content: {text: checked}}]
    accepted: true
  - packet: {schema: result/1, from: lead, content: {text: done}}
    refused: result-rests-on-evidence
  - packet: {schema: note/1, from: writer, content: {text: checked}}
    accepted: true
  - packet: {schema: note/1, from: lead, content: {text: checked}}
    refused: writers-write
""",
}


def write_overlay(name: str, kind: str) -> Path:
    """Write NAME.yml into this folder and return its path. Raises InputUnusable: no such kind, or the file exists."""
    if kind not in KINDS:
        raise InputUnusable(f"--kind is one of {', '.join(KINDS)}, not {kind!r}")
    path = Path(f"{name}.yml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_HEAD.format(name=name) + KINDS[kind])
    except OSError as error:
        raise InputUnusable(f"cannot write {path}: {error.strerror}") from error
    return path
