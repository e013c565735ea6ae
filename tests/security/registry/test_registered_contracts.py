"""Somebody registers a contract who may not, or one that a gate cannot carry: then a START could choose its rules."""

from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.registering.test_contract_registration import change_of, own, send
from tests.support.traffic.packets import make_start

from apc_contracts.contract import collection
from apc_contracts.errors import PacketRefused
from apc_contracts.identity import registry_change
from apc_contracts.identity.registry_change import ContractAdded, parse_registry_change
from apc_contracts.wire.canonical import canonical_json
from apc_log.registry import read_contracts

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
