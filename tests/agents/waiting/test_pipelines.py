"""Pipelines side by side, killed and continued: each effect once, the same packets, one result; a change is told."""

import asyncio
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agents.waiting.pipelines import (
    Handler,
    Killing,
    Pipelines,
    Program,
    Step,
    Wait,
    World,
    changeable,
    late_programs,
    numbered,
    programs,
    steps_of,
)

from apc_agents.handling import journal
from apc_agents.handling.state import SavedState, SavedWait
from apc_contracts import reply_id

EXAMPLES = settings.default.max_examples
FACT_BESIDE_A_WAIT: Program = numbered(
    (
        Wait(
            "late",
            Pipelines(
                "group",
                (
                    Pipelines("in turn", (Step("pause"), Step("fact"), Step("once"))),
                    Pipelines("in turn", (Step("pause"), Step("once"))),
                ),
            ),
        ),
        Wait("ask"),
    )
)
TWO_OF_TWO: Program = numbered(
    (
        Pipelines(
            "gather",
            (
                Pipelines("in turn", (Step("once"), Step("pause"), Step("once"), Step("named"), Step("emit", "a"))),
                Pipelines("in turn", (Step("pause"), Step("once"), Step("once"), Step("named"), Step("emit", "a"))),
            ),
        ),
    )
)


async def live_through(program: Program, kills: list[int], seed: int) -> tuple[World, Killing]:
    """Run a handler to its end; a run in `kills` dies after so many steps."""
    world = World(chance=Random(seed))
    killing = Killing(Handler(program, world))
    async with killing.at_work():
        for _ in range(40):
            world.steps_left = kills.pop(0) if kills else None
            await killing.live(world)
            if killing.errors or killing.is_done:
                break
            await killing.answer()
    return world, killing


def check(program: Program, world: World, killing: Killing) -> None:
    steps, emitted = steps_of(program), killing.emitted()
    assert killing.errors == []
    assert killing.is_done and world.ends, "the handler came to its end"
    assert set(world.made.values()) <= {1}, "each effect once"
    effects = {step.word for step in steps if step.kind == "once"}
    named = [step.word for step in steps if step.kind == "named"]
    assert effects <= set(world.made) and len(world.made) == len(effects) + len(named)
    wanted = Counter(step.word for step in steps if step.kind in ("emit", "named"))
    assert Counter(emitted.values()) == wanted, "each packet once, none lost"
    assert {str(one) for one in emitted} <= set(_texts(world.ends[-1]))


def _texts(value: Any) -> list[str]:
    return [text for one in value for text in _texts(one)] if isinstance(value, list) else [str(value)]


@settings(max_examples=EXAMPLES // 2)
@given(programs, st.lists(st.integers(0, 8), max_size=3), st.integers(0, 1_000))
def test_every_effect_happens_once_wherever_the_worker_dies(program: Program, kills: list[int], seed: int) -> None:
    check(program, *asyncio.run(live_through(program, kills, seed)))


@settings(max_examples=EXAMPLES // 4)
@given(late_programs, st.integers(0, 1_000))
def test_calls_may_come_before_a_wait_in_one_run_and_after_it_in_another(program: Program, seed: int) -> None:
    check(program, *asyncio.run(live_through(program, [], seed)))


def _changed(program: Program, number: int, how: str) -> Program:
    """Return the program with a change in the part that was recorded; another one if there is nothing to change."""
    recorded = [step for step in steps_of(program[0]) if step.kind in ("once", "emit", "named")]
    if not recorded:
        return (Step("once", "more"), *program)
    found = recorded[number % len(recorded)]
    place = steps_of(program[0]).index(found)
    counted = iter(range(len(steps_of(program[0]))))

    def change(part: Any) -> Any:
        if isinstance(part, Pipelines):
            return replace(part, parts=tuple(change(one) for one in part.parts))
        if next(counted) != place:
            return part
        if how == "leave out":
            return Step("pause")
        return Pipelines("in turn", (Step("once", "more"), part)) if how == "add" else Step(part.kind, "other")

    return (change(program[0]), *program[1:])


@pytest.mark.long
@settings(max_examples=EXAMPLES // 4)
@given(changeable, st.integers(0, 10), st.sampled_from(["leave out", "add", "change"]), st.integers(0, 1_000))
def test_a_handler_that_makes_other_calls_is_told_and_makes_no_effect(
    program: Program, number: int, how: str, seed: int
) -> None:
    async def act() -> tuple[World, Killing, Counter[str]]:
        world = World(chance=Random(seed))
        killing = Killing(Handler(program, world))
        async with killing.at_work():
            await killing.live(world)
            before = world.made.copy()
            await killing.answer()
            await killing.live(world, Handler(_changed(program, number, how), world))
        return world, killing, before

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(journal, "PATIENCE", 0.05)
        world, killing, before = asyncio.run(act())
    (error,) = killing.errors
    assert error.startswith("ContinuationDiverged: the handler has changed since it began to wait: call ")
    assert world.made == before


def test_two_pipelines_of_two_effects_each_are_made_once_after_each_kill() -> None:
    for kills in range(9):
        check(TWO_OF_TWO, *asyncio.run(live_through(TWO_OF_TWO, [kills, 8 - kills], kills)))


def test_a_fact_is_found_whether_it_was_read_before_or_after_a_wait() -> None:
    for seed in range(20):
        check(FACT_BESIDE_A_WAIT, *asyncio.run(live_through(FACT_BESIDE_A_WAIT, [], seed)))


async def test_a_wait_that_0_1_0_has_recorded_goes_on_with_other_numbers() -> None:
    """Its records have no places, and it counted what pipelines emitted together with what the handler did."""
    program: Program = (*TWO_OF_TWO, Wait("ask"), Step("emit", "b"))
    world = World()
    killing = Killing(Handler(program, world))
    async with killing.at_work():
        await killing.live(world)
        place = ("sentinel-1", killing.task.trace.session_id)
        saved = await killing.states.load_wait(*place, killing.task.packet_id)
        state = await killing.states.load(*place)
        assert saved is not None and state is not None
        record = orjson.loads(saved)
        del record["seconds"]
        assert all(entry.pop("place") is not None for entry in record["entries"][:-1]), "calls of pipelines have places"
        record["entries"][-1]["asked"][0][1] = 7
        old = SavedWait(killing.task.packet_id, orjson.dumps(record))
        await killing.states.save(*place, SavedState(*state, wait=old))
        await killing.answer()
        await killing.live(world)
    check(program, world, killing)
    assert reply_id(killing.task.packet_id, "sentinel-1", 9) in killing.emitted()
