"""kill -9 of agents of other frameworks, over a real broker and database: at each step of a turn, a tool and an ask."""

from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tests.integration.agents.joined_messages import Ask, End
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.integration.people.test_approvals import Desk, start_task
from tests.support.account import ACCOUNT
from tests.support.traffic import make_packet, until

from apc_agents.effects import EffectRecord, EffectState, PostgresEffectStore
from apc_agents.typed import document_of, payload_of, schema_of
from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts.identity.registry_change import SchemaAdded, encode_registry_change
from apc_contracts.vocabulary import RunPhase

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]
RESULT = "SELECT packet #>> '{payload,result,content,text}' FROM apc_log.packets WHERE packet_type = 'DECISION'"
DEAD = "SELECT packet_id FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED' ORDER BY seq"
KEPT = "SELECT count(*) FROM apc_app.agent_state_store WHERE state_key LIKE $1"


class Refunds(Desk):
    """A house with one agent of another framework, and somebody who answers it."""

    def __init__(self, house: House, amqp_url: str, database_url: str, folder: Path, module: str) -> None:
        super().__init__(house, amqp_url, database_url, folder)
        settings = {ACCOUNT: str(folder), "APC_EFFECT_LEASE": "PT1S"}
        self.worker = WorkerProcess(f"{module}:agent", amqp_url, database_url, folder, **settings)
        self.effects = PostgresEffectStore(house.pool)

    async def begin_refund(self) -> None:
        """Register everybody and everything, and hand the agent its input."""
        await self.house.agents.register()
        await self.add_person("alice", "release-manager")
        bus = self.house.agents.bus
        for model in (Ask, End):
            added = SchemaAdded(change_id=uuid4(), schema_id=str(schema_of(model)), document=document_of(model))
            body = encode_registry_change(added)
            sent = Message(body, str(uuid4()), type=headers.TYPE_REGISTRY, user_id=bus.user)
            await bus.publish(Publication(RECEIPTS, "0", sent))
        opening = start_task()
        ask = make_packet(
            "librarian", payload_of(Ask(text="o-7")), ("red-1",), parent=opening, phase=RunPhase.EXECUTION,
            session_id=opening.trace.session_id, version="apc/1.1",
        )  # fmt: skip
        await self.house.agents.publish(opening, ask)
        await until(self.house.is_logged(ask.packet_id))

    async def approve(self) -> None:
        (ask,) = await self.asked()
        approved = await self.apc("approval", "approve", str(ask), "--yes")
        assert approved.returncode == 0, approved.stderr

    async def unknown_tool(self, dead: int) -> EffectRecord:
        """Let the agent run until it says that nobody knows what its tool did; return the effect."""

        async def is_dead() -> bool:
            return len(await self.house.pool.fetch(DEAD)) == dead

        async with self.worker.running():
            await until(is_dead)
        (unknown,) = await self.effects.list(states=[EffectState.UNKNOWN])
        assert unknown.effect_id.key.startswith("tool/pay/")
        return unknown

    async def requeue(self) -> None:
        dead: UUID = (await self.house.pool.fetch(DEAD))[-1]["packet_id"]
        requeued = await self.apc("dead-letter", "requeue", str(dead))
        assert requeued.returncode == 0, requeued.stderr

    async def has_acted_once(self) -> None:
        """Nothing is unknown, people were asked once, and nothing is kept of the run."""
        assert (len(self.lines("payments")), len(await self.asked())) == (1, 1)
        assert await self.effects.list(states=[EffectState.UNKNOWN]) == []
        for framework in ("langgraph", "openai-agents"):
            assert await self.house.pool.fetchval(KEPT, f"{framework}/%") == 0

    async def result(self) -> str:
        async with self.worker.running():
            await until(self.house.is_in("CLOSED"))
        return str(await self.house.pool.fetchval(RESULT))


@pytest.fixture(params=["graph_agent", "sdk_agent"])
def refunds(
    request: pytest.FixtureRequest, house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path
) -> Refunds:
    return Refunds(house, amqp_vhost_url, postgres_url, tmp_path, str(request.param))


@pytest.mark.parametrize(
    "points",
    [("before_effect_claim", "after_effect_claim"), ("after_effect", "after_effect_record"),
     ("before_wait", "after_wait", "after_ask")],
    ids=["claim", "record", "ask"],
)  # fmt: skip
async def test_a_turn_and_an_ask_mend_themselves(refunds: Refunds, points: tuple[str, ...]) -> None:
    """Wherever its worker dies, the turn is made again, and people are asked once."""
    async with refunds.services():
        await refunds.begin_refund()
        for point in points:
            await refunds.worker.dies_at(f"worker.{point}")
        async with refunds.worker.running():
            await until(refunds.has_asked)
        await refunds.approve()
        assert refunds.lines("payments") == []
        assert await refunds.result() == "receipt 1"
    await refunds.has_acted_once()


async def test_a_tool_mends_itself_before_its_claim_and_after_its_record(refunds: Refunds) -> None:
    async with refunds.services():
        await refunds.begin_refund()
        async with refunds.worker.running():
            await until(refunds.has_asked)
        await refunds.approve()
        # Of the run that goes on: the first claim is the turn's, the second the tool's; the first record is the tool's.
        await refunds.worker.dies_at("worker.before_effect_claim:2")
        assert refunds.lines("payments") == []
        await refunds.worker.dies_at("worker.after_effect_record:1")
        assert len(refunds.lines("payments")) == 1
        assert await refunds.result() == "receipt 1"
    await refunds.has_acted_once()


async def test_a_tool_that_is_interrupted_is_unknown_until_it_is_settled(refunds: Refunds) -> None:
    async with refunds.services():
        await refunds.begin_refund()
        async with refunds.worker.running():
            await until(refunds.has_asked)
        await refunds.approve()
        await refunds.worker.dies_at("worker.after_effect_claim:2")
        unknown = await refunds.unknown_tool(dead=1)
        assert refunds.lines("payments") == []
        await refunds.effects.release(unknown.effect_id)
        await refunds.requeue()
        await refunds.worker.dies_at("worker.after_effect")
        unknown = await refunds.unknown_tool(dead=2)
        assert len(refunds.lines("payments")) == 1
        await refunds.effects.settle(unknown.effect_id, "receipt 1, says the bank", "operator")
        await refunds.requeue()
        assert await refunds.result() == "receipt 1, says the bank"
    await refunds.has_acted_once()
