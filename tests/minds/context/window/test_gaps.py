"""A model is told where turns were dropped: no question looks unanswered that was answered."""

from itertools import pairwise

from hypothesis import given
from tests.minds.context.windows import TARGETS, windows

from apc_minds.context import ContextSession, ContextWindow, SessionConfig, TurnRole
from apc_minds.context.compression import compress
from apc_minds.context.session import NOTE_ID, with_gaps_told


async def _chat(max_tokens: int = 400) -> ContextSession:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=max_tokens))
    for number in range(14):
        await session.add_user_turn(f"question {number}")
        await session.add_assistant_turn(f"answer {number} " * 12)
    return session


async def test_a_question_whose_answer_was_dropped_is_followed_by_a_note() -> None:
    session = await _chat()
    assert any(one.role is other.role is TurnRole.USER for one, other in pairwise(session.window.all_turns()))
    told = session.turns_for_model()
    assert not any(one.role is other.role is TurnRole.USER for one, other in pairwise(told))
    assert told[1].content == "[1 turn, t2, is left out]"
    assert "user: question 0\n\nsystem: [1 turn, t2, is left out]\n\nuser: question 1" in session.build_prompt(
        "assistant"
    )
    assert NOTE_ID not in {turn.resource_id for turn in session.window.all_turns()}
    assert not any("left out" in message["content"] for message in session.render()["messages"])


async def test_what_comes_back_is_no_longer_told() -> None:
    session = await _chat()
    await session.expand(["t2"])
    assert "t2" not in " ".join(turn.content for turn in session.turns_for_model() if turn.resource_id == NOTE_ID)


def test_turns_that_were_dropped_side_by_side_are_one_note() -> None:
    window = ContextWindow(1_000)
    for role in (TurnRole.USER, TurnRole.TOOL, TurnRole.ASSISTANT, TurnRole.USER):
        window.append(role, "word " * 20)
    told = with_gaps_told(compress(window, 0.0).window)
    assert [turn.content for turn in told if turn.resource_id == NOTE_ID] == ["[2 turns, t2 to t3, are left out]"]


def test_one_note_tells_of_all_places_when_there_is_no_room_for_more() -> None:
    window = ContextWindow(30)
    for _ in range(4):
        window.append(TurnRole.USER, "why?")
        window.append(TurnRole.ASSISTANT, "word " * 20)
    told = with_gaps_told(compress(window, 0.5).window)
    assert [turn.content for turn in told if turn.resource_id == NOTE_ID] == ["[4 turns, t2 to t8, are left out]"]
    assert with_gaps_told(compress(window.resized(5), 0.5).window) == window.turns_of(
        window.class_of(window.turn("t1"))
    )


@given(windows(), TARGETS)
def test_the_notes_keep_to_the_room_and_change_no_turn(window: ContextWindow, target: float) -> None:
    compressed = compress(window, target).window
    told = with_gaps_told(compressed)
    assert [turn for turn in told if turn.resource_id != NOTE_ID] == compressed.all_turns()
    assert sum(turn.tokens for turn in told) <= max(window.max_tokens, compressed.total_tokens)
    ordinals = [turn.ordinal for turn in told]
    assert ordinals == sorted(set(ordinals))
