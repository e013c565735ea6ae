"""The records of a handler's calls: what repeats, what does not, and their bounds."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import make_brief
from tests.support.traffic.packets import make_packet

from apc_agents import AgentError, EffectUnknown, EmitRefused
from apc_agents.effects import EffectId
from apc_agents.handling.journal import (
    MAX_RECORD_BYTES,
    MAX_WAITS,
    Asked,
    CallJournal,
    RecordedCall,
    Suspended,
    WaitRecord,
    decode_record,
)


def returning(value: Any) -> Any:
    async def make() -> Any:
        return value

    return make


async def never() -> Any:
    raise AssertionError("a recorded call was made again")


async def test_an_unknown_effect_is_raised_again_as_it_was() -> None:
    """A handler that catches it, asks somebody, and goes on reads the effect's key and time again."""
    unknown = EffectUnknown(EffectId(uuid4(), "payer-1", "charge"), datetime.now(UTC), "payer-1@host:1", None)

    async def once() -> None:
        raise unknown

    first = CallJournal()
    with pytest.raises(EffectUnknown):
        await first.call("once", lambda: "charge", once)
    entries = await recorded(first)
    with pytest.raises(EffectUnknown) as again:
        await CallJournal(entries).call("once", lambda: "charge", never)
    assert (again.value.effect_id, again.value.since) == (unknown.effect_id, unknown.since)
    assert str(again.value) == str(unknown)


async def recorded(journal: CallJournal) -> list[RecordedCall]:
    """End the run with a wait; return its records as the next run gets them."""
    suspended = journal.wait("ask", lambda: "q", [Asked(make_packet("red-1", make_brief()), 0)])
    assert isinstance(suspended, Suspended)
    return journal.entries()


async def test_recorded_calls_return_and_raise_as_before_without_any_effect() -> None:
    first = CallJournal()
    refusal = EmitRefused("OVERLOADED", "recipients[0]", "later", 500)

    async def refused() -> Any:
        raise refusal

    assert await first.call("once", lambda: "a", returning({"n": 1})) == {"n": 1}
    with pytest.raises(EmitRefused):
        await first.call("emit", lambda: "b", refused)
    second = CallJournal(await recorded(first))
    assert await second.call("once", lambda: "a", never) == {"n": 1}
    with pytest.raises(EmitRefused) as again:
        await second.call("emit", lambda: "b", never)
    assert vars(again.value) == vars(refusal)


@pytest.mark.parametrize(
    ("op", "subject", "where"),
    [
        ("once", "other", "call 1 was ctx.once(a) and is now ctx.once(other)"),
        ("emit", "a", "call 1 was ctx.once(a) and is now ctx.emit(a)"),
    ],
)
async def test_another_call_is_said_with_its_place_and_ends_the_run(op: str, subject: str, where: str) -> None:
    first = CallJournal()
    await first.call("once", lambda: "a", returning(1))
    second = CallJournal(await recorded(first))
    for _ in range(2):  # what the handler catches is ignored: every later call ends the run too
        with pytest.raises(Suspended):
            await second.call(op, lambda: subject, never)
    assert second.divergence == where


async def test_a_handler_that_ends_before_its_records_has_diverged() -> None:
    first = CallJournal()
    await first.call("once", lambda: "a", returning(1))
    second = CallJournal(await recorded(first))
    second.finish()
    assert second.divergence == "the handler ended before call 1, ctx.once(a)"


async def beside(act: Callable[[], Any]) -> Any:
    """Do something as the first act of a pipeline that the handler starts."""

    async def pipeline() -> Any:
        return act()

    return await asyncio.create_task(pipeline())


def pass_wait(journal: CallJournal) -> None:
    assert journal.passed_wait("ask", lambda: "q") is not None


async def test_what_a_pipeline_notes_earlier_than_it_did_is_found_behind_the_next_wait() -> None:
    """It was slow in the first run and fast in the second: the note came after the wait, and before it was passed."""
    second = CallJournal(await recorded(CallJournal()))
    assert await beside(lambda: second.note("step", str, lambda: 3)) == 3
    pass_wait(second)
    assert second.note("step", str, lambda: 4) == 4, "the handler's own, with the same key"
    third = CallJournal(await recorded(second))
    assert await beside(lambda: third.note("step", str, lambda: 5)) == 3
    pass_wait(third)
    assert third.note("step", str, lambda: 6) == 4
    pass_wait(third)
    third.finish()
    assert third.divergence is None


async def test_a_note_that_was_never_made_takes_none_of_the_handler_behind_the_next_wait() -> None:
    second = CallJournal(await recorded(CallJournal()))
    pass_wait(second)
    assert second.note("step", str, lambda: 4) == 4
    third = CallJournal(await recorded(second))
    assert await beside(lambda: third.note("step", str, lambda: 5)) == 5
    pass_wait(third)
    assert third.note("step", str, lambda: 6) == 4


async def test_a_call_that_has_not_returned_cannot_be_recorded() -> None:
    journal = CallJournal()
    with pytest.raises(AgentError, match="had not returned when the handler began to wait"):
        await journal.call("emit", lambda: "a", lambda: recorded(journal))


async def test_a_run_waits_at_most_64_times() -> None:
    waits = [RecordedCall("ask", "q", asked=[Asked(make_packet("red-1", make_brief()), 0)])] * MAX_WAITS
    journal = CallJournal(waits)
    for _ in range(MAX_WAITS):
        journal.check_may_wait(is_within=False)
        pass_wait(journal)
    with pytest.raises(AgentError, match="waits at most 64 times"):
        journal.check_may_wait(is_within=False)


async def test_records_have_at_most_one_mebibyte() -> None:
    packet = make_packet("red-1", make_brief())
    fitting = WaitRecord(packet, (), [RecordedCall("once", "a", {"returned": "x" * (MAX_RECORD_BYTES - 4096)})])
    assert decode_record(fitting.encode()).entries == fitting.entries
    fitting.entries[0].outcome = {"returned": "x" * MAX_RECORD_BYTES}
    with pytest.raises(AgentError, match="wait earlier, or keep large values"):
        fitting.encode()
