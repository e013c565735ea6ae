"""A gate that goes and one that comes, over a real broker: nothing judged twice, nothing lost."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import orjson
import pytest
from pydantic import SecretStr
from tests.integration.conftest import SIGNALLED, House
from tests.support.servers import Proxy
from tests.support.traffic import make_idea, make_packet, until

from apc_bus import headers
from apc_bus.port import Bus, Message, Publication
from apc_bus.settings import BusSettings
from apc_bus.topology import LOG, agent_queue, gate_queue, log_queue
from apc_contracts import parse_packet
from apc_contracts.vocabulary import PacketType
from apc_log.batch import CONTENT_TYPE, LOG_BATCH_TYPE, LOG_BATCH_VERSION, ConflictEntry, LogBatch, encode
from apc_log.queries.agents import read_signs
from apc_orchestrator import Orchestrator

INBOX = agent_queue("sentinel", urgent=False)
EPOCH = "SELECT epoch FROM apc_log.shards"


def is_active(gate: Orchestrator, *, epoch: int | None = None) -> Any:
    """Return a condition: this gate holds the shard, in this epoch."""

    async def holds() -> bool:
        (state,) = gate.shards
        return state.is_active and epoch in (None, state.epoch)

    return holds


async def test_a_standby_takes_over_when_the_connection_closes(house: House) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
    refused = make_packet("red-1", make_idea(), ("nobody",), parent=house.opening)
    async with house.persister(), house.gate() as (first, running):
        await house.open_session()
        async with house.gate() as (second, _):
            await house.agents.publish(sent, refused)
            (before,) = await house.agents.receive("sentinel")
            await until(house.is_logged(sent.packet_id, refused.packet_id))
            last = await house.pool.fetchval("SELECT batch_no FROM apc_log.shards")
            assert not second.shards[0].is_active, "one at a time"
            await running.bus.close()
            await until(is_active(second, epoch=2))
            await until(lambda: _is_left(first))
            (again,) = await house.agents.receive("sentinel")
            await house.agents.publish(sent, refused)
            answers = await house.agents.receive("red-1", 2, urgent=True)
            assert (await house.agents.bus.depth(INBOX)).messages == 0, "confirmed in its epoch: not delivered again"
            await house.agents.report("sentinel", [sent.packet_id])
            await until(house.has_come_to("ARCHIVED", sent.packet_id, "sentinel"))
    for delivery in (before, again):
        assert delivery.message.message_id == str(sent.packet_id)
        assert delivery.message.headers[headers.ATTEMPT] == 1
    assert [one.message.headers[headers.EPOCH] for one in (before, again)] == [1, 2]
    assert [one.message.headers[headers.MARK] for one in (before, again)] == ["0.0", f"1.{last}"]
    for answer in answers:
        nack: Any = parse_packet(answer.message.body)
        assert nack.packet_type is PacketType.NACK and nack.metadata["refusal"]["code"] == "UNROUTABLE"
        assert nack.payload.acked_packet_id == refused.packet_id
    for packet in (sent, refused):
        assert await house.count("agent_packets", f"packet_id = '{packet.packet_id}'") == 1


async def _is_left(gate: Orchestrator) -> bool:
    return not gate.shards[0].is_active


async def test_without_a_persister_inputs_wait_and_then_all_goes_on(house: House) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
    async with house.gate() as (gate, _):
        await house.agents.register()
        await house.agents.publish(house.opening, sent)
        await until(lambda: _waits_for_its_epoch(house))
        assert not gate.shards[0].is_active
        assert (await house.agents.bus.depth(INBOX)).messages == 0
        assert await house.pool.fetchval(EPOCH) is None
        async with house.persister():
            await until(is_active(gate, epoch=1))
            (delivery,) = await house.agents.receive("sentinel")
            assert delivery.message.message_id == str(sent.packet_id)
        behind = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
        await house.agents.publish(behind)
        (delivery,) = await house.agents.receive("sentinel")
        assert delivery.message.message_id == str(behind.packet_id), "the shard is held: the broker keeps the log"
        assert await house.count("agent_packets", f"packet_id = '{behind.packet_id}'") == 0
        async with house.persister():
            await until(house.is_logged(sent.packet_id, behind.packet_id))


async def _waits_for_its_epoch(house: House) -> bool:
    """The inputs are with the gate, and its opening is with the broker."""
    bus: Bus = house.agents.bus
    return (await bus.depth(gate_queue(0))).messages == 0 and (await bus.depth(log_queue(0))).messages == 1


async def test_a_gate_stops_while_it_waits_for_the_persister(house: House) -> None:
    async with house.gate():
        await house.agents.register()
        await until(lambda: _waits_for_its_epoch(house))
    async with house.persister(), house.gate() as (gate, _):
        await until(is_active(gate))
        await house.open_session()


@dataclass(frozen=True, slots=True)
class FarHouse:
    """A house, and settings by way of a proxy, with short patience."""

    house: House
    proxy: Proxy
    settings: BusSettings

    async def gate(self, resources: AsyncExitStack) -> Orchestrator:
        """Return a gate behind the proxy, with a heartbeat of a second."""
        near, self.house.settings = self.house.settings, self.settings
        gate, _ = await resources.enter_async_context(self.house.gate(heartbeat=timedelta(seconds=1)))
        self.house.settings = near
        return gate


@pytest.fixture
async def far_house(house: House, amqp_vhost_url: str) -> AsyncIterator[FarHouse]:
    async with Proxy.open(amqp_vhost_url) as proxy:
        far = house.settings.model_copy(
            update={
                "amqp_url": SecretStr(proxy.url),
                "heartbeat": timedelta(seconds=1),
                "broker_timeout": timedelta(seconds=2),
                "connect_timeout": timedelta(seconds=1),
                "connect_patience": timedelta(seconds=1),
            }
        )
        yield FarHouse(house, proxy, far)


@pytest.mark.long
async def test_an_idle_gate_keeps_its_shard(house: House) -> None:
    """Nobody speaks, and the bus asks nothing: the fence must not take the broker's pauses for its death.

    It may leave the shard while the machine stands still, as it must: what counts is that it keeps the next lease.
    """
    heartbeat = timedelta(seconds=1)
    house.settings = house.settings.model_copy(update={"heartbeat": heartbeat, "consumer_check": timedelta(minutes=5)})
    async with house.persister(), house.gate(heartbeat=heartbeat) as (gate, _):
        await until(is_active(gate))
        await until(_keeps_its_lease(gate, 4 * heartbeat))


def _keeps_its_lease(gate: Orchestrator, duration: timedelta) -> Callable[[], bool]:
    """Return a condition: the gate has held its shard in one epoch for this long."""
    held: tuple[int | None, float] = (None, 0.0)

    def has_kept_it() -> bool:
        nonlocal held
        (state,) = gate.shards
        epoch = state.epoch if state.is_active else None
        if epoch is None or epoch != held[0]:
            held = (epoch, time.monotonic())
        return epoch is not None and time.monotonic() - held[1] > duration.total_seconds()

    return has_kept_it


@pytest.mark.long
async def test_a_cut_connection_is_opened_again(far_house: FarHouse) -> None:
    house = far_house.house
    async with house.persister(), AsyncExitStack() as resources:
        gate = await far_house.gate(resources)
        await house.open_session()
        for number in range(3):
            sent = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
            await house.agents.publish(sent)
            (delivery,) = await house.agents.receive("sentinel")
            assert delivery.message.message_id == str(sent.packet_id)
            await house.agents.report("sentinel", [sent.packet_id])
            await until(house.has_come_to("ARCHIVED", sent.packet_id, "sentinel"))
            far_house.proxy.cut()
            await until(is_active(gate, epoch=number + 2))


async def test_one_that_waited_for_a_lost_shard_is_a_standby_again(far_house: FarHouse) -> None:
    """Its epoch is given and taken away before it looks: it must notice, or nobody is left to take over."""
    house = far_house.house
    async with AsyncExitStack() as resources:
        first = await far_house.gate(resources)
        await house.agents.register()
        await until(lambda: _waits_for_its_epoch(house))
        far_house.proxy.freeze()
        second_stack = await resources.enter_async_context(AsyncExitStack())
        second, _ = await second_stack.enter_async_context(house.gate())
        await until(lambda: _has_openings(house, 2))
        far_house.proxy.thaw()
        await resources.enter_async_context(house.persister())
        await until(is_active(second, epoch=2))
        await second_stack.aclose()
        await until(is_active(first, epoch=3))


async def _has_openings(house: House, count: int) -> bool:
    return bool((await house.agents.bus.depth(log_queue(0))).messages >= count)


@pytest.mark.long
async def test_a_lost_confirm_is_no_lost_batch(far_house: FarHouse) -> None:
    """The broker has the batch, the gate does not know: it leaves, the next one finds the recorded verdict."""
    house = far_house.house
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
    async with house.persister(), AsyncExitStack() as resources:
        first = await far_house.gate(resources)
        await house.open_session()
        second, _ = await resources.enter_async_context(house.gate())
        await until(lambda: _are_heard(house))  # the next message for the log is a batch
        far_house.proxy.freeze_after(LOG.encode())
        await house.agents.publish(sent)
        await until(house.is_logged(sent.packet_id))
        assert far_house.proxy.is_frozen
        assert (await house.agents.bus.depth(INBOX)).messages == 0, "not delivered before it is known to be logged"
        await until(is_active(second, epoch=2))
        (delivery,) = await house.agents.receive("sentinel")
        await until(lambda: _is_left(first))
        far_house.proxy.thaw()
        await house.agents.report("sentinel", [sent.packet_id])
        await until(house.has_come_to("ARCHIVED", sent.packet_id, "sentinel"))
    assert delivery.message.headers[headers.EPOCH] == 2
    row = await house.pool.fetchrow("SELECT epoch FROM apc_log.agent_packets WHERE packet_id = $1", sent.packet_id)
    assert row["epoch"] == 1, "judged once, by the first"
    spent = orjson.loads(await house.pool.fetchval("SELECT document FROM apc_log.sessions"))["spent"]
    assert spent == {"packets": 1}


async def _are_heard(house: House) -> bool:
    return set(await house.pool.fetchval(SIGNALLED)) <= (await read_signs(house.pool)).keys()


async def test_a_late_batch_is_fenced_and_recorded(house: House) -> None:
    async with house.persister():
        async with house.gate():
            await house.open_session()
            await until(lambda: _has_settled(house))
        async with house.gate() as (gate, _):
            await until(is_active(gate, epoch=2))
            late = ConflictEntry(None, None, "security", None, "of a gate that was away", b"{}", None, None, None)
            batch = LogBatch(LOG_BATCH_VERSION, 0, 1, 1000, house.opening.created_at, [late], [])
            message = Message(
                encode(batch), "late", LOG_BATCH_TYPE, user_id=house.agents.bus.user, content_type=CONTENT_TYPE
            )
            await house.agents.bus.publish(Publication(LOG, "0", message))
            sent = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
            await house.agents.publish(sent)
            await until(house.is_logged(sent.packet_id))
    assert await house.count("packet_conflicts", "kind = 'security'") == 0
    raw = await house.pool.fetchval("SELECT raw FROM apc_log.packet_conflicts WHERE kind = 'fenced'")
    assert raw == message.body


async def _has_settled(house: House) -> bool:
    return bool((await house.agents.bus.depth(log_queue(0))).messages == 0)
