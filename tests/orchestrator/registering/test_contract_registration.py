"""Contracts that an operator registers: the gate takes them without a restart, and all of it is in the log.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House, make_brief
from tests.orchestrator.judging.test_task_sessions import decision, open_task, refusal_of, work
from tests.support.traffic.packets import make_start

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_client.registration import contract_addition
from apc_contracts import CommitmentLevel, Packet, new_packet_id
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract, contract_from_bytes, load_contract, task_contract
from apc_contracts.identity.registry_change import ContractAdded, encode_registry_change
from apc_log.registry import LoggedContract, read_contracts
from apc_orchestrator.judging import registry
from apc_orchestrator.judging.registry import Registry

HASHES = "SELECT session_id, document ->> 'contract_hash' AS hash FROM apc_log.sessions"
CONFLICTS = "SELECT kind, reason FROM apc_log.packet_conflicts ORDER BY seq"
REGISTERED = "SELECT count(*) FROM apc_log.registry_events WHERE agent_id LIKE 'contract/%'"


def own(name: str = "own", kept: int = 128, **fields: Any) -> Contract:
    document = json.loads(task_contract().body) | {"name": name} | fields
    document["loops"]["contents_kept"] = kept
    return contract_from_bytes(json.dumps(document, ensure_ascii=False).encode())


def change_of(contract: Contract, revision: int = 1) -> ContractAdded:
    return ContractAdded(change_id=uuid4(), name=contract.name, revision=revision, document=contract.body.decode())


async def send(house: House, change: ContractAdded, user: str = "operator") -> None:
    body = encode_registry_change(change)
    sent = Message(body, str(new_packet_id()), type=headers.TYPE_REGISTRY, user_id=user)
    await house.client(user).publish(Publication(RECEIPTS, "0", sent))
    await house.quiet()


async def open_in(house: House, session_id: str, contract: str = "own") -> Packet:
    opening = open_task(session_id, contract=contract)
    await house.publish(opening)
    await house.quiet()
    return opening


async def test_a_session_begins_under_a_contract_that_was_registered_while_the_gate_ran(house: House) -> None:
    """It keeps its revision when another follows, also after a takeover; the next session begins under the newer."""
    first, second = own(), own(kept=64)
    async with house.persister():
        async with house.gate():
            await house.open(make_start())
            before = await open_in(house, "s-0")
            await send(house, change_of(first))
            task = await open_in(house, "s-2")
            await house.publish(work("librarian", make_brief(), ("red-1",), parent=task, session_id="s-2"))
            await send(house, change_of(second, 2))
            await open_in(house, "s-3")
        async with house.gate():
            await house.publish(work("red-1", decision(CommitmentLevel.DONE), parent=task, session_id="s-2"))
            await house.quiet()
            await open_in(house, "s-4")
        hashes = {row["session_id"]: row["hash"] for row in await house.pool.fetch(HASHES)}
        kept = {row["document"] for row in await house.pool.fetch("SELECT document FROM apc_log.contracts")}
        told = " ".join(packet.payload.reason for packet in await house.nacks("librarian"))
    assert await refusal_of(house, before) == ("UNKNOWN_CONTRACT", "payload.session.contract")
    assert "register its file with `apc contract register`" in told
    assert hashes["s-2"] == first.hash.hex()
    assert hashes["s-3"] == hashes["s-4"] == second.hash.hex()
    assert {first.body, second.body} <= kept


async def test_shard_0_decides_which_revision_is_next(house: House) -> None:
    """Of two operators who register at once the second is refused; the same file again changes nothing."""
    async with house.persister(), house.gate():
        await house.open(make_start())
        await send(house, change_of(own()))
        await send(house, change_of(own(kept=64)))
        await send(house, change_of(own(kept=64), 3))
        await send(house, change_of(own()))
        await send(house, change_of(own("apc-1.0")))
        found = [row["reason"] for row in await house.pool.fetch(CONFLICTS)]
        (stored,) = await read_contracts(house.pool)
    assert found == [
        "revision 1 of contract own is taken: repeat",
        "the next revision of contract own is 2, not 3: repeat the command",
        "apc-1.0 is the deployment's default contract: give the file another name, or set APC_CONTRACT",
    ]
    assert (stored.name, stored.revision, stored.document.encode()) == ("own", 1, own().body)


@pytest.mark.parametrize(("guard", "why"), [("moon == 1.0", "moon"), ("[1.0][5] == 1.0", "index out of bounds: 5")])
async def test_what_cannot_be_judged_by_is_not_registered(house: House, guard: str, why: str) -> None:
    """The gate says where, and goes on."""
    document = json.loads(own().body)
    edges = document["machines"]["inter_agent_coordination"]["edges"]
    edges[0]["guard"] = guard
    broken = contract_from_bytes(json.dumps(document).encode())
    async with house.persister(), house.gate():
        await house.open(make_start())
        await send(house, change_of(broken))
        (row,) = await house.pool.fetch(CONFLICTS)
        assert await house.pool.fetchval(REGISTERED) == 0
        await send(house, change_of(own()))
        assert await house.pool.fetchval(REGISTERED) > 0
    assert row["kind"] == "refused"
    assert "contract own at machines.inter_agent_coordination.edges[0]" in row["reason"] and why in row["reason"]


def test_another_shard_takes_revisions_in_any_order() -> None:
    """Shard 0 has decided already; what is older than what is there displaces nothing."""
    contracts: Any = Contracts(load_contract())
    shard_1 = Registry("orchestrator", {}, set(), contracts=contracts, decides=False)
    for change in (change_of(own(kept=64), 2), change_of(own(), 1)):
        assert shard_1.objection(change) is None
        assert shard_1.apply(change)
    assert contracts.named("own").body == own(kept=64).body
    assert shard_1.objection(change_of(own(), 2)) == "revision 2 of contract own is taken: repeat"


def test_the_default_of_a_deployment_keeps_its_name() -> None:
    """A contract was registered under this name before the deployment made its own file the default."""
    contracts = Contracts(own(kept=32))
    contracts.register(own(kept=64), 1)
    contracts.register(own("another"), 1)
    assert contracts.named("own") is contracts.default
    assert contracts.named("another") is not None


async def test_what_an_upgrade_made_unusable_gets_a_next_revision(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands take the number from the log, and so does the gate that cannot judge by the file any more."""
    async with house.persister():
        async with house.gate():
            await house.open(make_start())
            await send(house, change_of(own()))
        monkeypatch.setattr(registry, "stored_contract", lambda _: None)
        async with house.gate():
            before = await open_in(house, "s-2")
            await send(house, change_of(own(kept=32)))
            (logged,) = await read_contracts(house.pool)
            await send(house, contract_addition(own(kept=64), logged))
            found = [row["reason"] for row in await house.pool.fetch(CONFLICTS)]
            await open_in(house, "s-3")
        hashes = {row["session_id"]: row["hash"] for row in await house.pool.fetch(HASHES)}
    assert (await refusal_of(house, before))[0] == "UNKNOWN_CONTRACT"
    assert found == ["revision 1 of contract own is taken: repeat"]
    assert hashes["s-3"] == own(kept=64).hash.hex()


def test_the_same_file_is_the_same_change() -> None:
    first = contract_addition(own(), None)
    logged = LoggedContract("own", 1, first.document)
    assert contract_addition(own(), logged) == first
    second = contract_addition(own(kept=64), logged)
    assert second.revision == 2 and second.change_id != first.change_id
    back = contract_addition(own(), LoggedContract("own", 2, second.document))
    assert back.revision == 3 and back.change_id not in (first.change_id, second.change_id)
