"""What an agent sends does not make the gate remember without a bound."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, Packet
from apc_contracts.packet import ProofBundle
from apc_contracts.session.session import Session
from apc_contracts.wire.parsing import ReceivedPacket
from apc_orchestrator import telemetry
from apc_orchestrator.judging import memory
from apc_orchestrator.judging.memory import Sessions
from apc_orchestrator.shard import timers
from apc_orchestrator.shard.timers import Deadlines
from apc_orchestrator.verification import Bounds, Verifier

Build = Callable[..., Packet]
MANY = 1_000_000
VERDICTS = "SELECT coalesce(refusal_code, verdict) AS code, count(*) FROM apc_log.agent_packets GROUP BY 1"
CONFLICTS = "SELECT code, count(*) FROM apc_log.packet_conflicts GROUP BY 1"


async def found(house: House, query: str) -> dict[str, int]:
    return {row[0]: row[1] for row in await house.pool.fetch(query)}


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_packet_with_thousands_of_references(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_with: Callable[..., str], is_guarded: bool
) -> None:
    """Without the limit the session would keep each of them."""
    bundle = ProofBundle(evidence_refs=tuple(f"packet:{uuid4()}" for _ in range(5000)))
    async with house.persister(), house.gate(**({} if is_guarded else {"contract": contract_with(list_items=MANY)})):
        await house.open(start())
        await house.publish(packet("red-1", idea, ("sentinel",), parent=house.opening, proof_bundle=bundle))
        await house.quiet()
    assert (await found(house, CONFLICTS)).get("TOO_LARGE", 0) == is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_refused_packets_take_no_id_beyond_the_bound(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_with: Callable[..., str], is_guarded: bool
) -> None:
    limits = contract_with(refused_items=10 if is_guarded else MANY)
    async with house.persister(), house.gate(contract=limits):
        await house.open(start())
        for _ in range(50):
            await house.publish(packet("red-1", idea, ("nobody",), parent=house.opening))
        await house.quiet()
        honest = packet("blue-1", idea, ("sentinel",), parent=house.opening)
        await house.publish(honest)
        await house.quiet()
        assert await house.state_of(honest) == "ROUTED"
        assert len(await house.nacks("red-1")) == 50, "each of them is answered"
    assert (await found(house, VERDICTS))["UNROUTABLE"] == (5 if is_guarded else 50)
    assert (await found(house, CONFLICTS)).get("UNROUTABLE", 0) == (45 if is_guarded else 0), "with their bytes"


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("limit", ["session_items", "open_bytes"])
async def test_a_session_is_full(
    house: House,
    packet: Build,
    start: Build,
    idea: IdeaPayload,
    contract_with: Callable[..., str],
    limit: str,
    is_guarded: bool,
) -> None:
    """One sender meets its share of the open bodies, and the bound on items that holds for all."""
    bound, code = {"session_items": (80, "BUDGET_EXHAUSTED"), "open_bytes": (20_000, "OVERLOADED")}[limit]
    async with house.persister(), house.gate(contract=contract_with(**{limit: bound}) if is_guarded else None):
        await house.open(start())
        for number in range(60):
            one = idea.model_copy(update={"method_id": f"m-{number}"})
            await house.publish(packet("red-1", one, ("sentinel",), parent=house.opening))
        await house.quiet()
        verdicts = await found(house, VERDICTS)
        assert verdicts[code] > 20 if is_guarded else code not in verdicts
        honest = packet("blue-1", idea, ("sentinel",), parent=house.opening)
        await house.publish(honest)
        await house.quiet()
        assert await house.state_of(honest) == (
            "ROUTED" if limit == "open_bytes" or not is_guarded else "REJECTED_POLICY"
        )


async def test_what_is_counted_is_the_same_after_a_takeover(
    house: House, packet: Build, start: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Session] = []
    add = Sessions.add

    def note(self: Sessions, session: Session) -> None:
        loaded.append(session)
        add(self, session)

    monkeypatch.setattr(Sessions, "add", note)
    async with house.persister():
        async with house.gate():
            await house.open(start())
            for to in (("sentinel",), ("sentinel", "blue-1"), ("nobody",)):
                bundle = ProofBundle(evidence_refs=(f"packet:{uuid4()}",))
                await house.publish(packet("red-1", idea, to, parent=house.opening, proof_bundle=bundle))
            await house.quiet()
        async with house.gate():
            await house.publish(packet("blue-1", idea, ("nobody",), parent=house.opening))
            await house.quiet()
    first, again = loaded
    assert first.open_bytes > 0 and first.refused_items == 2
    assert (again.items, again.waiting_bytes) == (first.items, first.waiting_bytes)
    assert again.refused_items == first.refused_items + 2, "the packet of the second gate"


def session(name: str, **fields: Any) -> Session:
    plain = {"session_id": name, "is_terminal": False, "open": {}, "outstanding": {}, "items": 0}
    return cast(Session, SimpleNamespace(**(plain | {"refused_items": 0, "open_bytes": 0} | fields)))


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize(("field", "bound"), [("items", "ITEMS_KEPT"), ("open_bytes", "BODY_BYTES_KEPT")])
def test_sessions_leave_when_they_remember_too_much_together(
    monkeypatch: pytest.MonkeyPatch, field: str, bound: str, is_guarded: bool
) -> None:
    monkeypatch.setattr(memory, bound, 100 if is_guarded else MANY)
    kept = Sessions()
    for number in range(10):
        kept.add(session(f"s-{number}", **{field: 30}))
    kept.touch([f"s-{number}" for number in range(10)], 1)
    if not is_guarded:
        assert not kept.has_surplus(1000) and kept.evict(1, 1000) == [], "all of them stay"
        return
    assert kept.has_surplus(1000) and kept.evict(0, 1000) == [], "their batch is not committed yet"
    assert kept.evict(1, 1000) == [f"s-{number}" for number in range(7)]
    assert not kept.has_surplus(1000)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_an_ended_session_leaves_though_a_member_is_silent(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    if not is_guarded:  # a session with open deliveries is never taken for quiet
        monkeypatch.setattr(Sessions, "_ended", property(lambda _: {}, lambda *_: None), raising=False)
    kept = Sessions()
    kept.add(session("s", is_terminal=True, open={uuid4(): None}, outstanding={"silent": 1}))
    kept.touch(["s"], 1)
    assert kept.evict(1, 1000) == []
    kept.touch(["s"], 2)
    assert kept.evict(2, 1000) == [], "something came for it"
    assert kept.evict(2, 1000) == (["s"] if is_guarded else [])
    assert kept.was_evicted("s") is is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
def test_outdated_timers_do_not_pile_up(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    if not is_guarded:
        monkeypatch.setattr(timers, "OUTDATED_KEPT", MANY)
    noted, now = Deadlines(), datetime.now(UTC)
    for number in range(10_000):
        noted.note("s", now + timedelta(days=1, seconds=number % 2))
    assert (len(noted) <= 1024 + 2) is is_guarded
    assert noted.next == now + timedelta(days=1, seconds=1)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_session_that_is_loaded_again_is_not_verified_twice(
    monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    monkeypatch.setattr(Verifier, "_refusal", lambda *_: "a refusal")
    bounds = Bounds(1, timedelta(seconds=1), 8)
    verifier = Verifier(*cast(Any, (None, None, 0, {}, SimpleNamespace(verification=None), None, bounds)))
    packet_id = uuid4()
    packet = SimpleNamespace(packet_id=packet_id, sender=SimpleNamespace(agent_id="red-1"))
    request = cast(Any, SimpleNamespace(received=SimpleNamespace(packet=packet), findings=()))
    for _ in range(10):
        verifier.submit(request)
        if not is_guarded:
            verifier._submitted_ids.clear()
    waiting: list[object] = [verifier._submitted.get_nowait() for _ in range(verifier._submitted.qsize())]
    assert len(waiting) == (1 if is_guarded else 10)
    assert ("a refusal" in waiting) is not is_guarded, "a refusal fails the packet"


@pytest.mark.parametrize("is_guarded", [False, True])
def test_traces_of_very_many_packets_are_forgotten(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    monkeypatch.setattr(telemetry, "REMEMBERED", 100 if is_guarded else MANY)
    traces, batch = telemetry.Traces(), cast(Any, SimpleNamespace(spans=[], trace={}))
    headers = {"traceparent": f"00-{1:032x}-{1:016x}-01", "tracestate": "s" * 512}
    ids = [uuid4() for _ in range(300)]
    for packet_id in ids:
        found = ReceivedPacket(cast(Any, SimpleNamespace(packet_id=packet_id)), b"", b"", b"")
        traces.begin(batch, found, cast(Any, SimpleNamespace(headers=headers)))

    batch.trace = {}
    known = [packet_id for packet_id in ids if traces.of(batch, packet_id)]
    assert known == (ids[200:] if is_guarded else ids)
