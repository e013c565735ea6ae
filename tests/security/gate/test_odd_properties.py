"""An agent sends properties of kinds and sizes that nobody expects: the gate goes on, and others are heard."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import INGRESS, RECEIPTS
from apc_contracts import IdeaPayload, Packet
from apc_contracts.wire.parsing import seal

Build = Callable[..., Packet]
NAMES = [name for key, name in vars(headers).items() if key.isupper() and isinstance(name, str)]
ODD: tuple[Any, ...] = (True, 1 << 62, float("nan"), b"\xff", None, {"a": [1]}, "x" * 3000, datetime.now(UTC))
KINDS = "SELECT DISTINCT kind FROM apc_log.packet_conflicts"
BODIES = (b"", b"[]", b"[{}]", b"null", b"[" * 100_000)


async def test_odd_properties_stop_no_gate(running: House, packet: Build, idea: IdeaPayload) -> None:
    red = running.client("agent.red-1")
    for number, name in enumerate(NAMES):
        one = packet("red-1", idea, ("sentinel",), parent=running.opening)
        told = {name: ODD[number % len(ODD)], NAMES[number - 1]: ODD[(number + 1) % len(ODD)]}
        message = Message(seal(one).body, str(one.packet_id), type="IDEA", user_id="agent.red-1", headers=told)
        await red.publish(Publication(INGRESS, "0", message))
    for kind in ("receipts", "registry", "dead_input", "batch", "", "x" * 300):
        for exchange, body in ((INGRESS, BODIES[0]), *((RECEIPTS, body) for body in BODIES)):
            message = Message(body, str(uuid4()), type=kind, user_id="agent.red-1")
            await red.publish(Publication(exchange, "0", message))
    honest = packet("blue-1", idea, ("sentinel",), parent=running.opening)
    await running.publish(honest)
    await running.quiet()
    assert await running.state_of(honest) == "ROUTED"
    kinds = {row["kind"] for row in await running.pool.fetch(KINDS)}
    assert "unreadable" in kinds and "unjudgeable" not in kinds
