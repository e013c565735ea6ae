"""Operations compose, and what cannot run is refused before it runs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_minds.context import (
    CONTEXT_OPERAD,
    IDENTITY,
    Append,
    Composition,
    CompositionRefused,
    Compress,
    ContextError,
    ContextSession,
    ContextState,
    Expand,
    Promote,
    ResourceClass,
    Seek,
    SessionConfig,
    Tag,
    TurnRole,
    compose,
)
from apc_minds.context.compression import PLACEHOLDER_ID
from apc_minds.context.conversation import Outline

IDS = st.sampled_from(["t1", "t2", "t3", "t4", "t9", PLACEHOLDER_ID])
CLASSES = st.sampled_from(ResourceClass)
OPERATIONS = st.one_of(
    st.builds(Append, st.sampled_from(TurnRole), st.sampled_from(["x" * 40, "x" * 160, "Result: " + "so. " * 40])),
    st.builds(Tag, IDS, CLASSES),
    st.builds(Promote, IDS, CLASSES),
    st.builds(Compress, st.floats(0, 1)),
    st.builds(Expand, st.lists(IDS, max_size=2).map(tuple)),
    st.builds(Seek, st.integers(-1, 6)),
)
COMPOSITIONS = st.lists(OPERATIONS, max_size=8).map(lambda operations: compose(*operations))


def _session(*, auto_compress: bool = True) -> ContextSession:
    return ContextSession("s-1", config=SessionConfig(max_tokens=160, auto_compress=auto_compress))


@given(COMPOSITIONS, COMPOSITIONS, COMPOSITIONS)
def test_composition_is_associative_and_has_an_identity(one: Composition, two: Composition, three: Composition) -> None:
    assert (one >> two) >> three == one >> (two >> three)
    assert IDENTITY >> one == one == one >> IDENTITY
    assert compose(one, two, three) == one >> two >> three
    assert Seek(0) >> one == compose(Seek(0), one)


class _Seen:
    """Looks at the conversation without changing it."""

    def __init__(self) -> None:
        self.outline: Outline | None = None

    def outlined(self, outline: Outline) -> Outline:
        self.outline = outline
        return outline

    async def apply(self, conversation: Any) -> None:
        assert self.outline is not None
        assert conversation.state in self.outline.states
        assert len(conversation.window) <= self.outline.most_turns
        for turn in conversation.window.all_turns():
            assert not conversation.window.class_of(turn) < self.outline.classes[turn.resource_id]


@given(st.lists(OPERATIONS, max_size=8), st.booleans())
@settings(max_examples=150)
async def test_a_check_knows_what_comes_and_refuses_only_what_would_fail(
    operations: list[Any], auto_compress: bool
) -> None:
    composition = compose(*(part for operation in operations for part in (operation, _Seen())))
    session = _session(auto_compress=auto_compress)
    before = (session.window, session.state)
    try:
        composition.check(session._conversation.copy())
    except CompositionRefused as refused:
        with pytest.raises(CompositionRefused):
            await session.run(composition)
        assert (session.window, session.state) == before
        forced = session._conversation.copy()
        with pytest.raises((ContextError, KeyError)):
            for operation in operations[: refused.step // 2 + 1]:
                await operation.apply(forced)
        return
    try:
        await session.run(composition)
    except ContextError:
        assert (session.window, session.state) == before


async def test_a_composition_runs_as_a_whole() -> None:
    session = _session()
    await session.run(
        Append(TurnRole.SYSTEM, "You are terse.")
        >> Append(TurnRole.USER, "How far is Rome?")
        >> Append(TurnRole.ASSISTANT, "Far.")
        >> Promote("t3", ResourceClass.REQUIRED)
        >> Compress(0.9)
        >> Seek(1)
    )
    assert (session.state, session.window.position, len(session.window)) == (ContextState.COMPRESSED, 1, 3)


@pytest.mark.parametrize(
    ("composition", "step", "operation"),
    [
        (compose(Append(TurnRole.ASSISTANT, "hello")), 0, "Append"),
        (compose(Compress(0.5)), 0, "Compress"),
        (compose(Append(TurnRole.USER, "hello"), Compress(1.5)), 1, "Compress"),
        (compose(Append(TurnRole.USER, "hello"), Compress(0.5), Compress(1.5)), 2, "Compress"),
        (compose(Append(TurnRole.USER, "hello"), Promote("t2", ResourceClass.REQUIRED)), 1, "Promote"),
        (compose(Append(TurnRole.USER, "hello"), Seek(7)), 1, "Seek"),
        (compose(Expand(("t1",))), 0, "Expand"),
        (
            compose(
                Append(TurnRole.USER, "hello"),
                Tag("t1", ResourceClass.PRESERVED),
                Tag("t1", ResourceClass.DROPPABLE),
            ),
            2,
            "Tag",
        ),
    ],
)
async def test_what_cannot_run_is_refused_with_its_step(composition: Composition, step: int, operation: str) -> None:
    session = _session()
    with pytest.raises(CompositionRefused) as refused:
        await session.run(composition)
    assert (refused.value.step, refused.value.operation) == (step, operation)
    assert len(session.window) == 0


async def test_a_composition_that_fails_half_way_changes_nothing() -> None:
    session = _session()
    with pytest.raises(ContextError, match="tokens"):
        await session.run(compose(Append(TurnRole.USER, "hello"), Append(TurnRole.USER, "x" * 4_000)))
    assert (len(session.window), session.state) == (0, ContextState.EMPTY)


@given(COMPOSITIONS, st.booleans())
async def test_the_operad_has_the_type_of_every_operation(composition: Composition, auto_compress: bool) -> None:
    types = {typing.operation: typing for typing in CONTEXT_OPERAD.values()}
    assert {type(operation) for operation in composition.operations} <= set(types)
    outline = Outline.of(_session(auto_compress=auto_compress)._conversation)
    for operation in composition.operations:
        typing = types[type(operation)]
        try:
            reached = operation.outlined(outline)
        except ContextError:
            continue
        assert outline.states & typing.domain
        assert reached.states <= typing.codomain
        outline = reached


def test_the_operations_are_those_of_the_specification() -> None:
    assert list(CONTEXT_OPERAD) == ["append", "tag", "promote", "compress", "expand", "seek"]
