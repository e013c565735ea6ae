"""Somebody registers a contract who may not, or one that a gate cannot carry: then a START could choose its rules."""

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.registering.test_contract_registration import change_of, own, send
from tests.support.traffic.packets import make_start

from apc_contracts.contract import collection, machines
from apc_contracts.contract.contract import contract_from_bytes
from apc_contracts.errors import PacketRefused
from apc_contracts.identity import registry_change
from apc_contracts.identity.registry_change import ContractAdded, parse_registry_change
from apc_contracts.wire.canonical import canonical_json
from apc_log.registry import read_contracts
from apc_orchestrator.judging.registry import Registry

CONFLICTS = "SELECT kind, reason FROM apc_log.packet_conflicts ORDER BY seq"


def change(name: str, body: bytes) -> bytes:
    """Return a change as a stranger to the models writes it."""
    values = {"change_id": str(uuid4()), "action": "contract", "name": name, "revision": 1, "document": body.decode()}
    return canonical_json(values)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_only_the_operator_registers_contracts(house: House, is_guarded: bool) -> None:
    user = "agent.red-1" if is_guarded else "operator"
    async with house.persister(), house.gate():
        await house.open(make_start())
        await send(house, change_of(own()), user)
        found = [one.name for one in await read_contracts(house.pool)]
        told = [(row["kind"], row["reason"]) for row in await house.pool.fetch(CONFLICTS)]
    assert found == ([] if is_guarded else ["own"])
    assert told == (
        [("security", "a registry change by agent.red-1, who is not the operator operator")] if is_guarded else []
    )


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_no_more_names_than_the_gate_keeps(
    house: House, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    monkeypatch.setattr(collection, "MAX_REGISTERED", 1 if is_guarded else 2)
    async with house.persister(), house.gate():
        await house.open(make_start())
        for name in ("own", "another"):
            await send(house, change_of(own(name)))
        found = [one.name for one in await read_contracts(house.pool)]
    assert found == (["own"] if is_guarded else ["another", "own"])


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_large_contract_is_refused_as_it_is_read(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """Counted in bytes: each of these letters has three."""
    contract = own(comments={"a": "\N{EURO SIGN}" * 1000})
    limit = len(contract.body) - (1 if is_guarded else 0)
    monkeypatch.setattr(registry_change, "MAX_CONTRACT_BYTES", limit)
    body = change("own", contract.body)
    if is_guarded:
        with pytest.raises(PacketRefused, match=f"it has more than {limit} bytes: shorten it"):
            parse_registry_change(body)
    else:
        assert isinstance(parse_registry_change(body), ContractAdded)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_file_under_another_name_is_refused(is_guarded: bool) -> None:
    """Otherwise the registry says one name and the sessions another."""
    name = "task" if is_guarded else "own"
    body = change(name, own().body)
    if is_guarded:
        with pytest.raises(PacketRefused, match="the file has the name 'own': give the same"):
            parse_registry_change(body)
    else:
        assert parse_registry_change(body).subject == "contract/own"


def guarded_by(text: str) -> ContractAdded:
    """Return the change that registers a contract with this guard."""
    document = json.loads(own().body)
    document["machines"]["inter_agent_coordination"]["edges"][0]["guard"] = text
    return changed(document)


def changed(document: Any) -> ContractAdded:
    return change_of(contract_from_bytes(json.dumps(document).encode()))


NESTED = "[1.0].map(round, [1.0].map(round, round)) == []"
LONG_RUNS = {
    "nested": (NESTED, "nests one macro in another"),
    "behind a comment": ("[1.0].map//\n(round, [1.0].map//\n(round, round)) == []", "has a comment"),
    "behind a raw string": (f'r"\\" == "" || {NESTED} || "" == ""', "raw, byte or triple-quoted string"),
    "in three quotes": (f'"""a"b""" == "" || {NESTED} || "a" == ""', "raw, byte or triple-quoted string"),
    "other spelling": ("[1.0].existsOne(x, [1.0].existsOne(round, true))", "nests one macro in another"),
    "variable in parentheses": ("[1.0].all((x), [1.0].all((round), true))", "nests one macro in another"),
    "patterns in a macro": (
        "[1, 1].all(x, 'a'.matches('" + r"\\\\w" * 60 + "') || round >= 0.0)",
        "calls matches in a macro",
    ),
    "long patterns": ("'a'.matches('" + r"\\\\w" * 60 + "') || round >= 0.0", "patterns of the guard have more than"),
    "a long list in a macro": (
        "[" + ", ".join(["1.0"] * 80) + "].all(x, " + "&&".join(["x<=round"] * 40) + ")",
        "write shorter lists",
    ),
    "a long list that map doubles": (
        "[" + ", ".join(["1"] * 100) + "].map(x, [" + ", ".join(["x"] * 100) + "]).all(x, x != []) || round > 0.0",
        "write shorter lists",
    ),
    "a long sum": ("'a'" + "+ 'a'" * 100 + " != '' || round > 0.0", "fewer conditions or sums"),
    "a pattern that is computed": ("'a'.matches('a' + 'b')", "write the pattern out"),
    "doubled in a chain": ("[0]" + ".map(round, [round, round])" * 4 + " == []", "calls map twice"),
    "large pattern": (r"'a'.matches('(\\w{9}){9}')", "has matches and {"),
    "coded brace": (r"'a'.matches('\\w\x7b9}')", "has matches and {"),
}
"""Guards that grow to seconds or gigabytes within the thousand characters that one may have -> what is said."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("name", LONG_RUNS)
def test_a_guard_that_may_run_long_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, is_guarded: bool) -> None:
    text, said = LONG_RUNS[name]
    if not is_guarded:
        monkeypatch.setattr(machines, "refuse_long_runs", lambda *_: None)
        monkeypatch.setattr(machines, "macro_variables", lambda _: frozenset({"x"}))
    objection = Registry("orchestrator", {}, set()).objection(guarded_by(text))
    if is_guarded:
        assert objection is not None and said in objection
    else:
        assert objection is None


@pytest.mark.parametrize("is_guarded", [False, True])
def test_many_dear_guards_together_are_refused(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """Each is taken alone; a packet that is judged meets all drift checks."""
    document = json.loads(own().body)
    document["drift_checks"][0]["guard"] = "'a'.matches('" + "a" * 120 + "') || true"
    assert Registry("orchestrator", {}, set()).objection(changed(document)) is None
    document["drift_checks"] += [dict(document["drift_checks"][0], name=f"check_{number}") for number in range(5)]
    if not is_guarded:
        monkeypatch.setattr(machines, "_MOST_STEPS_TOGETHER", 1 << 60)
    objection = Registry("orchestrator", {}, set()).objection(changed(document))
    assert objection is None if not is_guarded else "write fewer macros" in str(objection)


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("text", ["[1.0][5] == 1.0", "{'a': 1.0}['b'] == 1.0", "1 / 0 == 1", "int(round * 1e300) == 1"])
def test_a_guard_that_raises_stops_no_gate(monkeypatch: pytest.MonkeyPatch, text: str, is_guarded: bool) -> None:
    """The gate that takes over reads the same change again."""
    registry = Registry("orchestrator", {}, set())
    if is_guarded:
        assert "cannot be evaluated" in str(registry.objection(guarded_by(text)))
    else:
        monkeypatch.setattr(machines, "_UNEVALUABLE", (TypeError, ValueError, RuntimeError))
        with pytest.raises((LookupError, ArithmeticError)):
            registry.objection(guarded_by(text))
