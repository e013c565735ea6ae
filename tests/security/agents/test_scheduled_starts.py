"""An agent whose right is `schedule` opens sessions that no schedule of it opens."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.orchestrator.conftest import House, house
from tests.security.gate.rules import take_away
from tests.support.traffic.packets import make_packet

from apc_contracts import Packet, SignalPayload, new_packet_id
from apc_contracts.identity.ids import keyed_id
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import Signal

__all__ = ["house"]

Act = Callable[[], Packet]
OWN, OTHERS = (str(keyed_id(agent, "every", "report", "session")) for agent in ("red-1", "blue-1"))
AGENTS = {"red-1": ("red", ("schedule",)), "blue-1": ("blue", ()), "librarian": ("library", ("operate",))}
VERDICT = """
SELECT verdict, refusal ->> 'code' AS code FROM apc_log.agent_packets WHERE packet_id = $1
UNION ALL SELECT 'refused', code FROM apc_log.packet_conflicts WHERE packet_id = $1
"""


def start(session_id: str = OWN, packet_id: Any = None, agent: str = "red-1", **spec: Any) -> Packet:
    fields: dict[str, Any] = {"contract": "task", "members": ("red-1", "blue-1"), "deciders": ("red-1",)} | spec
    payload = SignalPayload(signal=Signal.START, session=TaskSessionSpec(**fields))
    packet_id = packet_id or keyed_id(agent, "every", "report", "start")
    return make_packet(agent, payload, version="apc/1.1", session_id=session_id, packet_id=packet_id)


def for_another_who_decides() -> Packet:
    return start(deciders=("blue-1",))


def without_a_decider() -> Packet:
    """The opener decides then; a schedule names itself."""
    return start(deciders=())


def beside_another_who_decides() -> Packet:
    return start(deciders=("red-1", "blue-1"))


def without_itself() -> Packet:
    return start(members=("blue-1",))


def with_reviewers() -> Packet:
    return start(reviewers=("blue-1",))


def of_a_session_that_anyone_may_name() -> Packet:
    return start(session_id="nightly")


def of_a_session_of_anothers_key() -> Packet:
    return start(session_id=OTHERS)


def of_a_session_in_other_letters() -> Packet:
    return start(session_id=OWN.upper())


def with_any_id() -> Packet:
    return start(packet_id=new_packet_id())


def with_the_id_of_anothers_key() -> Packet:
    return start(packet_id=keyed_id("blue-1", "every", "report", "start"))


ACTS: list[Act] = [
    for_another_who_decides, without_a_decider, beside_another_who_decides, without_itself, with_reviewers,
    of_a_session_that_anyone_may_name, of_a_session_of_anothers_key, of_a_session_in_other_letters, with_any_id,
    with_the_id_of_anothers_key,
]  # fmt: skip


async def judged(house: House, packet: Packet) -> tuple[str, str | None]:
    async with house.persister(), house.gate():
        await house.register(AGENTS)
        await house.publish(packet)
        await house.quiet()
    row = await house.pool.fetchrow(VERDICT, packet.packet_id)
    assert row is not None
    return row["verdict"], row["code"]


async def test_the_session_of_a_schedule_is_opened(house: House) -> None:
    assert await judged(house, start()) == ("accepted", None)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_the_same_without_the_right_is_refused(
    monkeypatch: pytest.MonkeyPatch, house: House, is_guarded: bool
) -> None:
    if not is_guarded:
        take_away(monkeypatch, "may_signal")
    packet = start(OTHERS, agent="blue-1", deciders=("blue-1",))
    assert await judged(house, packet) == (("refused", "NOT_AUTHORIZED") if is_guarded else ("accepted", None))


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_another_session_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, house: House, act: Act, is_guarded: bool
) -> None:
    if not is_guarded:
        take_away(monkeypatch, "may_signal")
    assert await judged(house, act()) == (("refused", "NOT_AUTHORIZED") if is_guarded else ("accepted", None))


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("signal", [Signal.STOP, Signal.CANCEL, Signal.PAUSE, Signal.RESUME])
async def test_the_right_permits_no_other_signal(
    monkeypatch: pytest.MonkeyPatch, house: House, signal: Signal, is_guarded: bool
) -> None:
    if not is_guarded:
        take_away(monkeypatch, "may_signal")
    async with house.persister(), house.gate():
        await house.register(AGENTS)
        opening = start()
        await house.publish(opening)
        packet = make_packet("red-1", SignalPayload(signal=signal), parent=opening, session_id=OWN)
        await house.publish(packet)
        await house.quiet()
    row = await house.pool.fetchrow(VERDICT, packet.packet_id)
    assert row is not None
    assert row["code"] == ("NOT_AUTHORIZED" if is_guarded else None)
