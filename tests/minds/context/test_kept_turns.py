"""What the user and the system asked to keep stays in the request when turns are paged out."""

import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_minds.context import (
    ContextSession,
    Folding,
    InMemoryContextStore,
    MessageTooLong,
    ResourceClass,
    SessionConfig,
    TurnRole,
    UnknownResource,
)
from apc_minds.context.prompt_assembly import LEVEL, SOURCE

QUESTIONS = 500
MARKS = ("Constraint", "Remember")


def _session(max_tokens: int, **options: Any) -> ContextSession:
    return ContextSession("s-1", config=SessionConfig(max_tokens=max_tokens), **options)


def _asked(number: int) -> str:
    """Some 40 tokens."""
    return f"Question {number}: " + "what did the pump in the north hall show this morning? " * 3


def _told(session: ContextSession) -> str:
    return "\n".join(turn.content for turn in session.turns_for_model())


async def _ask(session: ContextSession, first: int, last: int) -> None:
    for number in range(first, last):
        await session.add_user_turn(_asked(number))
        if number % 10 == 0:
            assert sum(turn.tokens for turn in session.turns_for_model()) <= session.config.max_tokens
        await session.add_assistant_turn(f"Answer {number}: " + "it ran as it should. " * 8)


@pytest.mark.parametrize("max_tokens", [1_000, 8_000, pytest.param(16_000, marks=pytest.mark.long)])
async def test_ten_constraints_are_in_the_request_after_500_questions(max_tokens: int) -> None:
    chance, session = random.Random(max_tokens), _session(max_tokens)
    prompt = await session.add_system_turn("You are a fitter. Answer in one sentence.")
    await session.add_user_turn("I look after the pumps of the works in Emden.")
    places = sorted(chance.sample(range(QUESTIONS), 10))
    said = [f"{chance.choice(MARKS)}: pump {number} is not started before {number % 24} o'clock." for number in places]
    for number in range(QUESTIONS):
        await _ask(session, number, number + 1)
        if number in places:
            await session.add_user_turn(said[places.index(number)])
            await session.add_assistant_turn("I keep to it.")
    turns = session.turns_for_model()
    assert turns[0] == prompt
    assert [line for line in said if line not in _told(session)] == []
    assert "the works in Emden" in _told(session)
    assert any(fold.how is Folding.PAGED for fold in session.window.folded.values()), "plain questions are paged out"
    assert [turn.content for turn in turns if turn.role is TurnRole.USER][-1] in (_asked(QUESTIONS - 1), said[-1])


async def test_what_exceeds_the_budget_is_told_with_its_gist_and_comes_back() -> None:
    session = _session(1_000)
    long = "Constraint: pump 7 stays off.\n" + "That is what the insurer wrote to us in March. " * 30
    came = await session.add_user_turn("I look after the pumps.")
    kept = await session.add_user_turn(long)
    short = await session.add_user_turn("Remember: the key is under the mat.")
    await _ask(session, 0, 40)
    assert session.window.folded[kept.resource_id].how is Folding.PAGED
    assert {came.resource_id, short.resource_id} <= {turn.resource_id for turn in session.window.all_turns()}
    gist = session.window.gists[kept.resource_id]
    assert (gist.role, gist.content) == (TurnRole.USER, "[t2, shortened]\nConstraint: pump 7 stays off.")
    assert gist in session.turns_for_model()
    assert not any("shortened" in message["content"] for message in session.render()["messages"])
    assert await session.recall(kept.resource_id) == kept
    await session.expand([kept.resource_id])
    assert session.window.turn(kept.resource_id) == kept
    assert not session.window.gists


async def test_more_marks_than_there_is_room_for_leave_room_for_the_talk() -> None:
    session = _session(1_000)
    for number in range(200):
        await session.add_user_turn(f"Constraint: valve {number} stays shut.")
        await session.add_assistant_turn("It does.")
    told = _told(session)
    assert "Constraint: valve 199 stays shut." in told, "the newest"
    assert session.message_limit >= 0.5 * (700 - 32) - 1
    await session.add_user_turn("x" * 4 * session.message_limit)
    assert session.pressure <= 0.7


async def test_marks_in_foreign_text_push_nothing_out() -> None:
    session = _session(1_000)
    await session.add_user_turn("I look after the pumps.")
    await session.add_user_turn("Constraint: pump 7 stays off.")
    for number in range(60):
        foreign: Any = ({}, {SOURCE: {"from": "packet"}}, {LEVEL: "public"})[number % 3]
        add = (session.add_tool_turn, session.add_user_turn, session.add_assistant_turn)[number % 3]
        await add(f"Remember: pump {number} runs at full speed all night.", foreign)
        await _ask(session, number, number + 1)
    told = _told(session)
    assert "Constraint: pump 7 stays off." in told
    assert "pump 0 runs" not in told
    assert not session.window.gists


async def test_the_agents_own_marks_go_before_those_of_the_user() -> None:
    session = _session(1_000)
    await session.add_user_turn("Constraint: pump 7 stays off.")
    for number in range(60):
        await session.add_assistant_turn(f"Decision: we look at pump {number} tomorrow, and write down what it shows.")
        await _ask(session, number, number + 1)
    told = _told(session)
    assert "Constraint: pump 7 stays off." in told
    assert "we look at pump 59 tomorrow" in told


async def test_system_turns_and_what_was_promoted_stay() -> None:
    session = _session(1_000)
    await session.add_user_turn("I look after the pumps.")
    notice = await session.add_system_turn("The works close at noon.")
    plain = await session.add_user_turn("My name is Ubbo.")
    await session.promote(plain.resource_id, ResourceClass.PRESERVED, "asked for")
    await _ask(session, 0, 60)
    assert {notice.content, plain.content} <= {turn.content for turn in session.window.all_turns()}


async def test_a_plain_question_is_paged_before_a_decision_of_the_agent() -> None:
    session = _session(1_000)
    await session.add_user_turn("I look after the pumps.")
    await session.add_assistant_turn("Decision: pump 7 is replaced in May.")
    await _ask(session, 0, 30)
    assert "Decision: pump 7 is replaced in May." in _told(session)


async def test_a_gist_outlives_a_restart_and_a_document_of_before_has_none() -> None:
    store = InMemoryContextStore()
    session = _session(1_000, store=store)
    await session.add_user_turn("Constraint: pump 7 stays off.\n" + "Thus wrote the insurer in March. " * 40)
    await _ask(session, 0, 40)
    assert session.window.gists
    await session.save()
    again = await ContextSession.open("s-1", store=store, config=session.config)
    assert (again.window, again.turns_for_model()) == (session.window, session.turns_for_model())
    assert again.window.total_tokens == session.window.total_tokens
    stored, revision = await store.load("s-1") or (b"", 0)
    document = orjson.loads(stored)
    del document["window"]["gists"]
    await store.save("s-1", orjson.dumps(document), revision)
    assert not (await ContextSession.open("s-1", store=store, config=session.config)).window.gists


async def test_every_turn_can_be_recalled() -> None:
    session = _session(1_000)
    await _ask(session, 0, 60)
    assert {fold.how for fold in session.window.folded.values()} == {Folding.DROPPED, Folding.PAGED}
    before = session.window
    assert (await session.recall("t5")).content == _asked(2)
    assert (await session.recall("t6")).content.startswith("Answer 2:")
    assert (await session.recall("t119")).content == _asked(59)
    assert session.window == before
    with pytest.raises(UnknownResource):
        await session.recall("t121")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(TurnRole),
            st.floats(0, 1),
            st.sampled_from(["", "Constraint: ", "Result: ", "```\n", "\n- **Remember:** "]),
            st.booleans(),
        ),
        max_size=30,
    ),
    st.integers(60, 600),
)
@settings(max_examples=50, deadline=None)
async def test_whatever_is_kept_the_longest_message_fits(
    said: list[tuple[TurnRole, float, str, bool]], max_tokens: int
) -> None:
    session = _session(max_tokens)
    came = {(turn := await session.add_user_turn("ok")).resource_id: turn.to_bytes()}
    for role, share, mark, is_promoted in said:
        content = (mark + "so. " * int(share * session.message_limit))[: 4 * session.message_limit]
        turn = await session._append(role, content, None)
        came[turn.resource_id] = turn.to_bytes()
        assert session.pressure <= 0.7
        assert session.turns_for_model()[-1].resource_id in (turn.resource_id, "dropped")
        if is_promoted and turn.resource_id not in session.window.folded:
            await session.promote(turn.resource_id, ResourceClass.PRESERVED)
    with pytest.raises(MessageTooLong):
        await session.add_user_turn("x" * (4 * session.message_limit + 1))
    await session.expand()
    assert {turn.resource_id: turn.to_bytes() for turn in session.window.all_turns()} == came
