"""The engineered context alone, in this process: compressing 2,000 turns, and what versions of a window cost."""

import time
import tracemalloc
from collections.abc import Callable

from apc_minds.context import ContextSession, ContextWindow, ResourceClass, SessionConfig, TurnRole, compress
from benchmarks.support.figures import Figure, Figures

TURNS = 2_000
COMPRESS_BAR_MS = 50.0
ROUNDS = 15
TEXT = "The spare pump came at two. It was fitted by three, and it leaked as the first one had. " * 2
MANY, FEW = 16_000, 1_000


async def measure_context(figures: Figures) -> None:
    """Measure; the best of some rounds, because whatever disturbs a loop only makes it slower."""
    mixed, required = _window(TURNS), _window(TURNS)
    for turn in required.all_turns():
        if turn.role is not TurnRole.USER:
            required.promote(turn.resource_id, ResourceClass.REQUIRED)
    _compression(figures, "context_compress", "a third each of user, assistant, tool", lambda: compress(mixed, 0.4))
    summarized = compress(required, 0.1).summarized_count
    _compression(figures, "context_summarize", f"{summarized} turns summarized", lambda: compress(required, 0.1))
    took = min([await _session_compression() for _ in range(ROUNDS)])
    note = "with digests, stored turns and the audit"
    figures.add(Figure("context_session_compress", took, "ms", COMPRESS_BAR_MS, 1.0, is_time=True, note=note))
    _growth(figures)


def _window(count: int, max_tokens: int = TURNS * 45) -> ContextWindow:
    window, roles = ContextWindow(max_tokens), (TurnRole.USER, TurnRole.ASSISTANT, TurnRole.TOOL)
    for number in range(count):
        window.append(roles[number % 3], f"{number}: {TEXT}")
    return window


def _compression(figures: Figures, name: str, note: str, action: Callable[[], object]) -> None:
    took = min(_milliseconds(action) for _ in range(ROUNDS))
    figures.add(Figure(name, took, "ms", COMPRESS_BAR_MS, 1.0, is_time=True, note=f"{TURNS} turns, {note}"))


async def _session_compression() -> float:
    session = ContextSession("bench", config=SessionConfig(max_tokens=TURNS * 70))
    await session.add_user_turn("Begin.")
    for number in range(1, TURNS):
        add = session.add_user_turn if number % 3 == 0 else session.add_assistant_turn
        await add(f"{number}: {TEXT}")
    began = time.perf_counter()
    await session.compress(0.3)
    return (time.perf_counter() - began) * 1000


def _growth(figures: Figures) -> None:
    """Time the same act on a long and on a short window, `limit`; a ratio near 1 means no copying."""
    for name, act in (("append", _append), ("seek", _seek)):
        few, many = (min(act(window) for _ in range(ROUNDS)) for window in (_window(FEW), _window(MANY)))
        note = f"{MANY:,} turns beside {FEW:,}"
        figures.add(Figure(f"context_{name}", many, "µs", few, note=note))
    few_bytes, many_bytes = (_bytes_per_snapshot(_window(count)) for count in (FEW, MANY))
    note = f"duplicate() of {MANY:,} turns beside {FEW:,}"
    figures.add(Figure("context_snapshot", many_bytes, "bytes", few_bytes, note=note))


def _append(window: ContextWindow, times: int = 200) -> float:
    grown = window.copy()
    began = time.perf_counter()
    for _ in range(times):
        grown.append(TurnRole.TOOL, TEXT)
    return (time.perf_counter() - began) / times * 1e6


def _seek(window: ContextWindow, times: int = 1_000) -> float:
    began = time.perf_counter()
    for position in range(times):
        window.seek(position)
    return (time.perf_counter() - began) / times * 1e6


def _bytes_per_snapshot(window: ContextWindow) -> float:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    snapshots = window.duplicate()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / len(snapshots)


def _milliseconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000
