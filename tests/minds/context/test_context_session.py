"""A session: compresses in time, pages out, comes back after a restart, changes as a whole or not at all."""

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_minds.context import (
    ArgumentInvalid,
    CompressionAudit,
    ContextError,
    ContextPressureError,
    ContextSession,
    ContextState,
    Folding,
    InMemoryContextStore,
    InvalidTransition,
    MessageTooLong,
    ResourceClass,
    SessionConfig,
    Turn,
    TurnInvalid,
    TurnRole,
)
from apc_minds.context.compression import PLACEHOLDER_ID, is_pinned

SMALL = SessionConfig(max_tokens=2_000)


def _said(number: int) -> str:
    """Some 40 tokens, different each time."""
    return f"Message {number}: " + "please look at the pump again and tell me what you see. " * 3


async def talk(session: ContextSession, first: int, last: int, asked: list[int] | None = None) -> dict[str, bytes]:
    """Return the turns as they came; `asked` notes the tokens that a model was given."""
    turns: list[Turn] = []
    for number in range(first, last, 2):
        turns.append(await session.add_user_turn(_said(number)))
        given = session.turns_for_model()
        if asked is not None:
            asked.append(sum(turn.tokens for turn in given))
        assert given[-1].resource_id == turns[-1].resource_id
        turns.append(await session.add_assistant_turn(_said(number + 1)))
    return {turn.resource_id: turn.to_bytes() for turn in turns}


async def test_a_chat_of_200_turns_stays_below_its_limit_and_loses_nothing() -> None:
    store, audits, asked = InMemoryContextStore(), list[CompressionAudit](), list[int]()

    async def note(audit: CompressionAudit) -> None:
        audits.append(audit)

    session = ContextSession("chat-1", store=store, config=SMALL, on_compression=note)
    prompt = await session.add_system_turn("You are a fitter. Answer in one sentence.")
    came = await talk(session, 0, 100, asked)
    await session.save()
    again = await ContextSession.open("chat-1", store=store, config=SMALL, on_compression=note)
    assert (again.window, again.state, again.render()) == (session.window, session.state, session.render())
    came |= await talk(again, 100, 200, asked)
    assert len(came) == 200
    assert len(asked) == 100
    assert max(asked) <= 2_000
    assert audits
    window = again.window
    assert window.turn(prompt.resource_id) == prompt
    for turn in window.turns_of(ResourceClass.PRESERVED):
        assert turn.resource_id in (prompt.resource_id, PLACEHOLDER_ID) or turn.to_bytes() == came[turn.resource_id]
    paged = {key for key, fold in window.folded.items() if fold.how is Folding.PAGED}
    assert paged == set(orjson.loads(orjson.dumps(window.turn(PLACEHOLDER_ID).metadata))["paged"])
    assert {key for audit in audits for key in (one.resource_id for one in audit.folded)} == set(window.folded)
    back = await again.expand()
    assert back.missing == ()
    restored = {turn.resource_id: turn.to_bytes() for turn in again.window.all_turns()}
    assert restored == came | {prompt.resource_id: prompt.to_bytes()}
    assert [turn.ordinal for turn in again.window.all_turns()] == list(range(1, 202))


@given(
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(TurnRole), st.floats(0, 1), st.booleans()), max_size=30),
    st.integers(60, 600),
)
@settings(max_examples=80, deadline=None)
async def test_whatever_is_said_it_rests_below_its_threshold_and_loses_nothing(
    has_prompt: bool, said: list[tuple[TurnRole, float, bool]], max_tokens: int
) -> None:
    session, came = ContextSession("s-1", config=SessionConfig(max_tokens=max_tokens)), dict[str, bytes]()
    first = await session.add_system_turn("ok") if has_prompt else await session.add_user_turn("ok")
    came[first.resource_id] = first.to_bytes()
    for role, share, is_marked in said:
        # From nothing to the longest turn that is taken.
        content = ("Result: " if is_marked else "") + "so. " * int(share * session.message_limit)
        content = content[: 4 * session.message_limit]
        add = {
            TurnRole.USER: session.add_user_turn,
            TurnRole.ASSISTANT: session.add_assistant_turn,
            TurnRole.TOOL: session.add_tool_turn,
            TurnRole.SYSTEM: session.add_system_turn,
        }[role]
        turn = await add(content)
        came[turn.resource_id] = turn.to_bytes()
        assert session.pressure <= 0.7
        assert session.state is not ContextState.PRESSURED
        if role in (TurnRole.USER, TurnRole.TOOL):
            assert session.window.all_turns()[-1] == turn, "what waits for an answer is there"
    assert not has_prompt or session.window.all_turns()[0] == first
    await session.expand()
    assert {turn.resource_id: turn.to_bytes() for turn in session.window.all_turns()} == came


async def test_it_compresses_before_the_answer_and_never_rests_pressured() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=400))
    states = []
    for number in range(20):
        await session.add_user_turn(_said(number))
        states.append(session.state)
        await session.add_assistant_turn(_said(number))
        await session.add_tool_turn(_said(number))
        states.append(session.state)
    assert ContextState.PRESSURED not in states
    assert ContextState.COMPRESSED in states


async def test_paging_takes_the_oldest_plain_turns_and_keeps_the_initial_prompt() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=400))
    await session.add_system_turn("You are terse.")
    for number in range(12):
        await session.add_user_turn(_said(number))
    window = session.window
    first, first_words, placeholder, *left = window.all_turns()
    assert is_pinned(window, first)
    assert first_words.content == _said(0), "the user's first words stay"
    assert placeholder.resource_id == PLACEHOLDER_ID
    assert placeholder.metadata["paged"] == [f"t{number}" for number in range(3, 14 - len(left))]
    assert f"{11 - len(left)} earlier turns" in placeholder.content
    assert [turn.content for turn in left] == [_said(number) for number in range(12 - len(left), 12)]
    await session.expand(["t3"])
    assert session.window.turn("t3").content == _said(1)
    paged = session.window.turn(PLACEHOLDER_ID).metadata["paged"]
    assert isinstance(paged, list) and "t3" not in paged


async def test_required_turns_are_summarized_before_anything_is_paged() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=800, keep_recent=1))
    await session.add_user_turn("Keep the log.")
    for number in range(6):
        await session.add_assistant_turn(f"Result: {number}. " + "the pump ran and was seen to run. " * 12)
    window = session.window
    assert {fold.how for fold in window.folded.values()} == {Folding.SUMMARIZED}
    assert window.turn("t2").content.startswith("Result: 0.")
    assert window.turn("t2").tokens <= 32


async def test_a_session_that_does_not_compress_by_itself_refuses_turns_under_pressure() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=200, auto_compress=False))
    while session.state is not ContextState.PRESSURED:
        await session.add_assistant_turn("x" * 120) if session.window.all_turns() else await session.add_user_turn("go")
    before = session.window
    with pytest.raises(ContextPressureError, match=r"Compress or clear first\."):
        await session.add_user_turn("still there?")
    assert (session.window, session.can_send) == (before, False)
    await session.compress()
    assert (session.state, session.can_send) == (ContextState.COMPRESSED, True)
    assert not await session.compress_if_needed()
    result = await session.compress(0.0)
    assert (session.state, session.compressions) == (ContextState.COMPRESSED, 2)
    assert result.compressed_tokens <= before.total_tokens
    await session.add_user_turn("still there?")


async def test_a_model_is_never_given_more_than_the_window_may_hold() -> None:
    session = ContextSession("s-1", config=SMALL)
    await talk(session, 0, 100)
    await session.expand()
    assert (session.state, session.window.overflow_tokens > 0) == (ContextState.PRESSURED, True)
    with pytest.raises(ContextPressureError):
        session.build_prompt("assistant")
    await session.add_user_turn("And now?")
    assert session.build_prompt("assistant").endswith("user: And now?")


@pytest.mark.parametrize(
    ("message", "error"),
    [("x" * 40_000, MessageTooLong), ("a\0b", TurnInvalid), ("\udfff", TurnInvalid), (None, TurnInvalid)],
)
async def test_a_message_that_cannot_be_taken_changes_nothing(message: Any, error: type[ContextError]) -> None:
    session = ContextSession("s-1", config=SMALL)
    await talk(session, 0, 4)
    before = (session.window, session.state)
    with pytest.raises(error):
        await session.add_user_turn(message)
    assert (session.window, session.state) == before


async def test_the_longest_message_fits_whatever_was_said_before() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=400))
    await session.add_system_turn("You are terse.")
    await talk(session, 0, 10)
    limit = session.message_limit
    assert limit == 280 - 4 - 32 - session.window.turn("t2").tokens, "beside the prompt and the user's first words"
    with pytest.raises(MessageTooLong, match=f"{limit + 1} tokens and {limit} fit"):
        await session.add_user_turn("x" * (4 * limit + 1))
    await session.add_user_turn("x" * 4 * limit)
    assert session.pressure <= 0.7
    assert session.window.all_turns()[-1].content == "x" * 4 * limit


async def test_clear_forgets_and_gives_no_id_twice() -> None:
    store = InMemoryContextStore()
    session = ContextSession("s-1", store=store, config=SMALL)
    came = await talk(session, 0, 60)
    folded = tuple(session.window.folded)
    await session.clear()
    assert (session.state, len(session.window), session.pressure) == (ContextState.EMPTY, 0, 0.0)
    assert await store.get_turns("s-1", folded) == {}
    assert (await session.add_user_turn("again")).resource_id not in came
    with pytest.raises(InvalidTransition):
        await ContextSession("s-2").clear()


@pytest.mark.parametrize(
    "option",
    [
        {"target_pressure": 2.0},
        {"paging_share": -1.0},
        {"kept_share": 1.5},
        {"keep_recent": 0},
        {"keep_recent": "2"},
        {"summary_tokens": 0},
        {"max_tokens": -1},
        {"max_tokens": True},
    ],
)
def test_a_setting_outside_its_range_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ArgumentInvalid, match=next(iter(option))):
        SessionConfig(**option)


async def test_changes_wait_for_one_another() -> None:
    session = ContextSession("s-1", config=SMALL)
    await session.add_user_turn("go")
    await asyncio.gather(*(session.add_tool_turn(_said(number)) for number in range(60)))
    ids = {turn.resource_id for turn in session.window.all_turns()} | set(session.window.folded)
    assert ids - {PLACEHOLDER_ID} == {f"t{number}" for number in range(1, 62)}


async def test_what_is_done_to_the_window_that_a_session_shows_does_not_reach_it() -> None:
    session = ContextSession("s-1")
    await session.add_user_turn("go")
    session.window.append("assistant", "spoiled")
    assert len(session.window) == 1


async def test_a_promoted_answer_is_preserved_from_then_on() -> None:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=400))
    await session.add_user_turn("go")
    kept = await session.add_assistant_turn(_said(1))
    await session.promote(kept.resource_id, ResourceClass.PRESERVED, "the user likes it")
    for number in range(5):
        await session.add_assistant_turn(_said(number))
    assert session.window.turn(kept.resource_id) == kept
    dropped = await session.add_assistant_turn("of no use")
    await session.drop(dropped.resource_id)
    await session.expand([dropped.resource_id])
    assert session.window.turn(dropped.resource_id) == dropped
