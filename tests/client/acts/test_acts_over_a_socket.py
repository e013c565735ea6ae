"""Acts on a system in another process, through the socket of its data folder, with gate and log."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.orchestrator.conftest import House, house, idea, packet, running, start

from apc_bus.settings import BusSettings
from apc_cli.commands.ui import OperatorActs
from apc_client.local_acts import NAME, serve_acts
from apc_client.operator import OPERATOR
from apc_client.registration import LOG_PATIENCE, register_operator
from apc_contracts import IdeaPayload, Packet
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId

__all__ = ["house", "idea", "packet", "running", "start"]
SESSION = "s-1"


@pytest.fixture(params=["short", "long" * 30], ids=["short path", "long path"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="apc-acts-") as made:
        data = Path(made) / request.param
        data.mkdir(0o700)
        yield data


@pytest.fixture
async def acts(running: House, folder: Path) -> AsyncIterator[OperatorActs]:
    """The acts of a web server beside a system that takes them."""
    bus = running.client("operator")
    async with serve_acts(folder, bus, 1):
        await register_operator(bus, running.pool, 1, None, LOG_PATIENCE)
        yield OperatorActs(running.pool, BusSettings(amqp_url=None, data_dir=folder))
    assert not (folder / NAME).exists()


async def test_a_session_is_paused_and_resumed(running: House, acts: OperatorActs) -> None:
    assert await acts.why_not(None) is None
    paused = await acts.signal(SESSION, Signal.PAUSE, "lunch", None)
    resumed = await acts.signal(SESSION, Signal.RESUME, None, None)
    assert [one.detail["by"] for one in (paused, resumed)] == [OPERATOR] * 2
    assert paused.detail["state"].startswith("paused in ")


async def test_a_dead_letter_is_delivered_again(
    running: House, acts: OperatorActs, packet: Callable[..., Packet], idea: IdeaPayload
) -> None:
    sent = packet("red-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(sent)
    await running.quiet()
    await running.read("sentinel")
    await running.report("sentinel", sent.packet_id, "dead_lettered", user="orchestrator")
    await running.quiet()
    done = await acts.settle(ReceiptKind.REQUEUE, [DeliveryId(SESSION, sent.packet_id, "sentinel")], "mended", None)
    assert done.detail["by"] == OPERATOR
    assert await running.state_of(sent) == "ROUTED"


async def test_nobody_acts_while_no_system_runs(running: House, folder: Path) -> None:
    """Not before it has started, and not after it was killed: a socket that nobody listens to stays then."""
    acts = OperatorActs(running.pool, BusSettings(amqp_url=None, data_dir=folder))
    said = await acts.why_not(None)
    assert said is not None and said.startswith("no system runs over ")
    bus = running.client("operator")
    await register_operator(bus, running.pool, 1, None, LOG_PATIENCE)
    async with serve_acts(folder, bus, 1):
        (folder / NAME).rename(folder / "kept")
        assert await acts.voices(None) == frozenset()
    (folder / "kept").rename(folder / NAME)
    said = await acts.why_not(None)
    assert said is not None and said.startswith("no system runs over ")
    async with serve_acts(folder, bus, 1):
        assert await acts.why_not(None) is None, "the next start takes its place"
