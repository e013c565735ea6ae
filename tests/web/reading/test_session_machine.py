"""The machine of a session is the one of its contract, whichever contract the server loads by default."""

import json
from collections.abc import Callable
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import make_brief
from tests.orchestrator.judging.test_task_sessions import open_task, work
from tests.support.traffic.packets import make_start
from tests.web.conftest import WebBench

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import Packet
from apc_contracts.contract.contract import task_contract
from apc_contracts.identity.registry_change import ContractAdded, encode_registry_change

TASK_STATES = ["SESSION_OPEN", "WORKING", "REVIEW", "CLOSED", "HALTED"]


async def register_own(bench: WebBench) -> None:
    document = json.dumps(json.loads(task_contract().body) | {"name": "own"})
    change = ContractAdded(change_id=uuid4(), name="own", revision=1, document=document)
    sent = Message(
        encode_registry_change(change), str(change.change_id), type=headers.TYPE_REGISTRY, user_id="operator"
    )
    await bench.house.client("operator").publish(Publication(RECEIPTS, "0", sent))
    await bench.house.quiet()


@pytest.mark.parametrize(
    "opened", [lambda: open_task("s-2"), lambda: open_task("s-2", contract="own")], ids=["task", "own"]
)
async def test_a_task_session_has_the_states_of_its_contract(bench: WebBench, opened: Callable[[], Packet]) -> None:
    opening = opened()
    async with bench.house.persister(), bench.house.gate():
        await bench.house.open(make_start())
        await register_own(bench)
        await bench.house.publish(opening)
        await bench.house.publish(work("librarian", make_brief(), ("red-1",), parent=opening, session_id="s-2"))
        await bench.house.quiet()

    session = await bench.get("/sessions/s-2")
    whole = await bench.get(f"/sessions/s-2/at/{session['last_seq']}")

    assert [one["name"] for one in session["machine"]["states"]] == TASK_STATES
    assert {one["run_phase"] for one in session["machine"]["states"]} == {"EXECUTION", None}
    assert {one["event"] for one in session["machine"]["edges"]} >= {"work_started", "work_done"}
    assert (whole["state"], whole["run_phase"]) == ("WORKING", "EXECUTION")
    research = await bench.get("/sessions/s-1")
    assert "DIFFERENTIATED_RESEARCH" in [one["name"] for one in research["machine"]["states"]]
