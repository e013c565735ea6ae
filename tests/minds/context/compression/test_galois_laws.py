"""Compression and expansion obey the laws of docs/specification/agents.md section 4."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.minds.context.windows import TARGETS, stored, windows

from apc_minds.context import CompressionConfig, ContextProjector, ContextWindow, Folding, ResourceClass, compress
from apc_minds.context.compression import page_out

LAWS = settings(max_examples=100)
CONFIG = CompressionConfig(summary_tokens=4)
PROJECTOR = ContextProjector(CONFIG)
DROPPABLE, PRESERVED = ResourceClass.DROPPABLE, ResourceClass.PRESERVED


@given(windows(), TARGETS)
@LAWS
async def test_compress_expand_compress_is_compress(window: ContextWindow, target: float) -> None:
    once = await PROJECTOR.compress(window, target)
    expanded = PROJECTOR.expand(once.window, stored(once))
    again = await PROJECTOR.compress(expanded.window, target)
    assert again.window == once.window
    assert again.folded == once.folded


@given(windows(), TARGETS)
@LAWS
async def test_compress_is_idempotent_at_its_target(window: ContextWindow, target: float) -> None:
    once = await PROJECTOR.compress(window, target)
    twice = await PROJECTOR.compress(once.window, target)
    assert twice.window == once.window
    assert twice.folded == ()
    assert twice.target_met is once.target_met


@given(windows(), TARGETS, st.data())
@LAWS
async def test_expand_after_compress_never_has_more_than_there_was(
    window: ContextWindow, target: float, data: st.DataObject
) -> None:
    result = await PROJECTOR.compress(window, target)
    kept = stored(result)
    lost = set(data.draw(st.lists(st.sampled_from(sorted(kept))))) if kept else set()
    back = PROJECTOR.expand(result.window, {key: turn for key, turn in kept.items() if key not in lost})
    known = {turn.resource_id: turn.to_bytes() for turn in window.all_turns()}
    compressed = {turn.resource_id: turn.to_bytes() for turn in result.window.all_turns()}
    for turn in back.window.all_turns():
        assert turn.to_bytes() in (known[turn.resource_id], compressed.get(turn.resource_id))
    assert set(back.missing) == lost
    assert set(back.window.folded) == lost


@given(windows(), TARGETS)
@LAWS
async def test_expand_after_compress_restores_byte_for_byte_from_a_full_store(
    window: ContextWindow, target: float
) -> None:
    result = await PROJECTOR.compress(window, target)
    back = PROJECTOR.expand(result.window, stored(result)).window
    assert [turn.to_bytes() for turn in back.all_turns()] == [turn.to_bytes() for turn in window.all_turns()]
    assert (back.total_tokens, dict(back.folded)) == (window.total_tokens, {})


@given(windows(), TARGETS)
@LAWS
async def test_preserved_turns_are_byte_identical_and_the_order_is_kept(window: ContextWindow, target: float) -> None:
    result = await PROJECTOR.compress(window, target)
    assert [turn.to_bytes() for turn in result.window.turns_of(PRESERVED)] == [
        turn.to_bytes() for turn in window.turns_of(PRESERVED)
    ]
    ordinals = [turn.ordinal for turn in result.window.all_turns()]
    assert ordinals == sorted(set(ordinals))
    assert set(ordinals) <= {turn.ordinal for turn in window.all_turns()}


@given(windows(), TARGETS)
@LAWS
async def test_the_oldest_droppable_go_first_and_no_more_than_needed(window: ContextWindow, target: float) -> None:
    result = await PROJECTOR.compress(window, target)
    dropped = [one.turn for one in result.folded if one.how is Folding.DROPPED]
    assert dropped == window.turns_of(DROPPABLE)[: len(dropped)], "the oldest"
    if any(one.how is Folding.SUMMARIZED for one in result.folded):
        assert not result.window.turns_of(DROPPABLE), "REQUIRED is touched when nothing is left to drop"
    elif dropped:
        assert not _meets(result.compressed_tokens + dropped[-1].tokens, window, target), "it stops at the target"
    assert result.target_met is _meets(result.compressed_tokens, window, target)
    if not result.target_met:
        untouched = [turn for turn in result.window.all_turns() if turn.tokens > CONFIG.summary_tokens]
        assert all(window.class_of(turn) is PRESERVED for turn in untouched)


def _meets(tokens: int, window: ContextWindow, target: float) -> bool:
    return tokens == 0 or (window.max_tokens > 0 and tokens / window.max_tokens <= target)


@given(windows(), st.lists(TARGETS, min_size=10, max_size=10))
@LAWS
async def test_classes_and_ids_survive_ten_compressions(window: ContextWindow, targets: list[float]) -> None:
    current, results = window, []
    for target in targets:
        results.append(await PROJECTOR.compress(current, target))
        current = results[-1].window
    assert current.linearity == window.linearity
    left = {turn.resource_id for turn in current.all_turns()}
    assert left | set(current.folded) == {turn.resource_id for turn in window.all_turns()}
    back = PROJECTOR.expand(current, stored(*results)).window
    assert [turn.to_bytes() for turn in back.all_turns()] == [turn.to_bytes() for turn in window.all_turns()]
    assert back.linearity == window.linearity


@given(windows(), TARGETS, st.integers(0, 3))
@LAWS
async def test_paged_turns_come_back_byte_for_byte(window: ContextWindow, target: float, keep: int) -> None:
    compressed = await PROJECTOR.compress(window, target)
    result = page_out(compressed, target / 2, keep)
    ordinals = [turn.ordinal for turn in result.window.all_turns()]
    assert all(one < other for one, other in pairwise(ordinals))
    if keep:
        assert result.window.all_turns()[-keep:] == compressed.window.all_turns()[-keep:]
    back = PROJECTOR.expand(result.window, stored(result)).window
    assert [turn.to_bytes() for turn in back.all_turns()] == [turn.to_bytes() for turn in window.all_turns()]


@given(windows(), TARGETS, st.data())
@LAWS
async def test_expanding_one_by_one_is_expanding_at_once(
    window: ContextWindow, target: float, data: st.DataObject
) -> None:
    result = page_out(await PROJECTOR.compress(window, target), target / 2, 0)
    kept, current = stored(result), result.window
    for resource_id in data.draw(st.permutations(sorted(kept))):
        current = PROJECTOR.expand(current, kept, [resource_id]).window
    assert current == PROJECTOR.expand(result.window, kept).window


@given(windows(), TARGETS)
@LAWS
async def test_the_plain_function_does_the_same(window: ContextWindow, target: float) -> None:
    assert compress(window, target, CONFIG) == await PROJECTOR.compress(window, target)


@given(windows())
@LAWS
def test_the_pressure_of_the_projector_is_that_of_the_window(window: ContextWindow) -> None:
    used = sum(turn.tokens for turn in window.all_turns())
    assert PROJECTOR.pressure(window) == (min(1.0, used / window.max_tokens) if window.max_tokens else 0.0)
