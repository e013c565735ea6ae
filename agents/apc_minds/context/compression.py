"""Compression of a window: the placeholder of what was paged out, the projector, paging, and the record for the log."""

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import orjson

from apc_agents.emission import Emits
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import Channel, Signal
from apc_minds.context.prompt_assembly import LEVEL, SOURCE
from apc_minds.context.turns import (
    INITIAL_PROMPT,
    ArchiveCorrupted,
    ArgumentInvalid,
    ResourceClass,
    Turn,
    TurnInvalid,
    TurnRole,
    UnknownResource,
    checked_content,
    classify_by_marker,
    digest_of,
    marked_lines,
)
from apc_minds.context.window import DEFAULT_THRESHOLD, ContextWindow, Fold, Folding, checked_fraction
from apc_minds.text import ExtractiveSummarizer, Summarizer, cut

PLACEHOLDER_ID: Final = "paged"
"""The resource_id of a window's one placeholder."""


def is_placeholder(turn: Turn) -> bool:
    """Return whether a turn stands for others."""
    return turn.resource_id == PLACEHOLDER_ID


def with_placeholder(window: ContextWindow, turns: Iterable[Turn], since: datetime) -> ContextWindow:
    """Return the window with these turns, and a placeholder for what it has paged out, where the oldest of it stood.

    Args:
        window: its folds tell what is paged out; its own placeholder is replaced.
        turns: what it is to hold, in any order, without the placeholder.
        since: the time of the placeholder.
    """
    held = {turn.ordinal: turn for turn in turns if not is_placeholder(turn)}
    waiting = sorted((fold.ordinal, key) for key, fold in window.folded.items() if fold.how is Folding.PAGED)
    if not waiting:
        return window.with_turns(held[ordinal] for ordinal in sorted(held))
    held[waiting[0][0]] = _placeholder(window, [resource_id for _, resource_id in waiting], waiting[0][0], since)
    known = window.copy()
    if PLACEHOLDER_ID not in known.linearity:
        known.know(PLACEHOLDER_ID, ResourceClass.PRESERVED, "placeholder")
    return known.with_turns(held[ordinal] for ordinal in sorted(held))


def _placeholder(window: ContextWindow, resource_ids: list[str], ordinal: int, since: datetime) -> Turn:
    count, first, last = len(resource_ids), resource_ids[0], resource_ids[-1]
    which = f"turn, {first}, is" if count == 1 else f"turns, {first} to {last}, are"
    content = f"[{count} earlier {which} kept verbatim in memory]"
    return Turn(
        role=TurnRole.SYSTEM,
        content=content,
        timestamp=since,
        resource_id=PLACEHOLDER_ID,
        ordinal=ordinal,
        tokens=window.counter.count(content),
        metadata={"paged": list(resource_ids)},
    )


# Compression and its undoing: a Galois connection, lossy in one direction.
#
# Source: docs/reference/conformance/context-engineering.md, section 2.2; the laws: docs/specification/agents.md section
# 4.


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionConfig:
    """How far compression goes."""

    summary_tokens: int = 32
    """A REQUIRED turn of more tokens may be summarized to at most so many, ≥ 1."""
    keep_recent: int = 0
    """So many of the newest turns are left alone, whatever their class."""

    def __post_init__(self) -> None:
        """Check the limits. Raises ArgumentInvalid."""
        if type(self.summary_tokens) is not int or self.summary_tokens < 1:
            raise ArgumentInvalid("summary_tokens", f"{self.summary_tokens!r} leaves no summary: give at least 1")
        if type(self.keep_recent) is not int or self.keep_recent < 0:
            raise ArgumentInvalid("keep_recent", f"{self.keep_recent!r} is no number of turns: give 0 or more")


@dataclass(frozen=True, slots=True)
class FoldedTurn:
    """A turn that a compression took away or replaced: as it stood before, and what stands for it now."""

    turn: Turn
    stored: bytes
    """The turn as a store keeps it."""
    how: Folding
    resource_class: ResourceClass
    summary: Turn | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of `stored`."""
        return digest_of(self.stored)

    @property
    def fold(self) -> Fold:
        """What a window remembers of it."""
        return Fold(self.turn.ordinal, self.how, self.digest)


def folded_turn(turn: Turn, how: Folding, resource_class: ResourceClass, summary: Turn | None = None) -> FoldedTurn:
    """Return a folded turn with its stored form."""
    return FoldedTurn(turn, turn.to_bytes(), how, resource_class, summary)


@dataclass(frozen=True, slots=True)
class CompressionResult:
    """What a compression did. `window` is the compressed one; the window that was given stays as it is."""

    window: ContextWindow
    target_pressure: float
    target_met: bool
    """False when what must not be touched is above the target."""
    original_tokens: int
    compressed_tokens: int
    folded: tuple[FoldedTurn, ...] = ()
    """In the order of the conversation. A caller that wants `expand` puts the turns away before using the window."""

    @property
    def dropped_count(self) -> int:
        """Turns that were dropped."""
        return sum(one.how is Folding.DROPPED for one in self.folded)

    @property
    def summarized_count(self) -> int:
        """Turns that a summary stands for."""
        return sum(one.how is Folding.SUMMARIZED for one in self.folded)

    @property
    def paged_count(self) -> int:
        """Turns that a session has paged out."""
        return sum(one.how is Folding.PAGED for one in self.folded)

    @property
    def preserved_count(self) -> int:
        """PRESERVED turns in the window."""
        return len(self.window.turns_of(ResourceClass.PRESERVED))

    @property
    def compression_ratio(self) -> float:
        """Tokens after / before; 1 for an empty window."""
        return self.compressed_tokens / self.original_tokens if self.original_tokens else 1.0


@dataclass(frozen=True, slots=True)
class ExpansionResult:
    """What came back. `missing`: ids that the store no longer has; they stay folded."""

    window: ContextWindow
    restored: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SummaryWanted:
    """What a compression asks of its summarizer."""

    text: str
    max_tokens: int


Compressing = Generator[SummaryWanted, str, CompressionResult]
"""A compression that asks for summaries one after the other, so that it needs no event loop."""

DEFAULT_CONFIG: Final = CompressionConfig()


@dataclass(frozen=True, slots=True)
class ContextProjector:
    """Galois Connection for context compression: `compress` is lossy, `expand` gives back what a store still has."""

    config: CompressionConfig = DEFAULT_CONFIG
    summarizer: Summarizer = field(default_factory=ExtractiveSummarizer)

    async def compress(self, window: ContextWindow, target_pressure: float = DEFAULT_THRESHOLD) -> CompressionResult:
        """Compress to a target pressure.

        1. Drop DROPPABLE turns, oldest first.
        2. Summarize REQUIRED turns, oldest first.
        3. Never touch PRESERVED turns.

        It stops as soon as the target is met; on a window that meets it nothing happens.

        Raises:
            ArgumentInvalid: the target is outside 0..1.
            Exception: what the summarizer raised; the window is as it was.
        """
        steps = compressing(window, target_pressure, self.config)
        answer: str | None = None
        while True:
            try:
                wanted = next(steps) if answer is None else steps.send(answer)
            except StopIteration as end:
                result: CompressionResult = end.value
                return result
            answer = await self.summarizer.summarize(wanted.text, wanted.max_tokens)

    def expand(
        self, window: ContextWindow, stored: Mapping[str, bytes], resource_ids: Sequence[str] | None = None
    ) -> ExpansionResult:
        """Restore folded turns at their places, byte for byte.

        Args:
            window: a compressed window; it stays as it is.
            stored: the stored turns by resource_id, as a store gave them.
            resource_ids: which ones; None = all that are folded. One that is not folded is in the window already.

        Raises:
            UnknownResource: no turn of the window ever had this id.
            ArchiveCorrupted: stored bytes are not those that were put away.
        """
        return expanded(window, stored, resource_ids)

    def pressure(self, window: ContextWindow) -> float:
        """Return the current pressure: tokens_used / max_tokens, clamped to 0..1."""
        return window.pressure


def compress(
    window: ContextWindow, target_pressure: float = DEFAULT_THRESHOLD, config: CompressionConfig = DEFAULT_CONFIG
) -> CompressionResult:
    """Compress like ContextProjector.compress with the extractive summarizer, without I/O."""
    steps = compressing(window, target_pressure, config)
    extract = ExtractiveSummarizer(window.counter).extract
    answer: str | None = None
    while True:
        try:
            wanted = next(steps) if answer is None else steps.send(answer)
        except StopIteration as end:
            result: CompressionResult = end.value
            return result
        answer = extract(wanted.text, wanted.max_tokens)


def compressing(window: ContextWindow, target_pressure: float, config: CompressionConfig) -> Compressing:
    """Compress step by step: yield each text to be summarized, and return the result. Raises ArgumentInvalid."""
    target = checked_fraction("target_pressure", target_pressure)
    turns = window.all_turns()
    touchable = [(turn, window.class_of(turn)) for turn in turns[: max(0, len(turns) - config.keep_recent)]]
    total, folded = window.total_tokens, dict[str, FoldedTurn]()
    for turn, resource_class in touchable:
        if fits(total, window, target):
            break
        if resource_class is ResourceClass.DROPPABLE:
            folded[turn.resource_id] = folded_turn(turn, Folding.DROPPED, resource_class)
            total -= turn.tokens
    for turn, resource_class in touchable:
        if fits(total, window, target):
            break
        if resource_class is ResourceClass.REQUIRED and turn.tokens > config.summary_tokens:
            answer = yield SummaryWanted(turn.content, config.summary_tokens)
            summary = _summary(turn, answer, window, config.summary_tokens)
            folded[turn.resource_id] = folded_turn(turn, Folding.SUMMARIZED, resource_class, summary)
            total -= turn.tokens - summary.tokens
    return _result(window, target, folded)


def fits(tokens: int, window: ContextWindow, target: float) -> bool:
    """Return whether so many tokens meet the target; unclamped, so that a target of 1 still means max_tokens."""
    return tokens <= 0 or (window.max_tokens > 0 and tokens / window.max_tokens <= target)


def _summary(turn: Turn, text: str, window: ContextWindow, max_tokens: int) -> Turn:
    # A model may answer with more than it was asked for, and with what no store keeps.
    try:
        checked_content(text)
    except TurnInvalid:
        text = text.replace("\0", " ").encode(errors="replace").decode()
    content = cut(text, max_tokens, window.counter)
    return turn.saying(content, window.counter.count(content))


def _result(window: ContextWindow, target: float, folded: Mapping[str, FoldedTurn]) -> CompressionResult:
    changed = window
    if folded:
        left = (_left(turn, folded.get(turn.resource_id)) for turn in window.all_turns())
        folds = {resource_id: one.fold for resource_id, one in folded.items()}
        changed = window.with_folds(folds).with_turns(turn for turn in left if turn is not None)
    return CompressionResult(
        window=changed,
        target_pressure=target,
        target_met=fits(changed.total_tokens, window, target),
        original_tokens=window.total_tokens,
        compressed_tokens=changed.total_tokens,
        folded=tuple(sorted(folded.values(), key=lambda one: one.turn.ordinal)),
    )


def _left(turn: Turn, folded: FoldedTurn | None) -> Turn | None:
    return turn if folded is None else folded.summary


def expanded(
    window: ContextWindow, stored: Mapping[str, bytes], resource_ids: Sequence[str] | None = None
) -> ExpansionResult:
    """Expand like ContextProjector.expand."""
    asked = tuple(window.folded) if resource_ids is None else tuple(dict.fromkeys(resource_ids))
    for resource_id in asked:
        if resource_id not in window.linearity:
            raise UnknownResource(resource_id)
    folded = [resource_id for resource_id in asked if resource_id in window.folded]
    back = {key: _restored(key, stored[key], window) for key in folded if key in stored}
    missing = tuple(key for key in folded if key not in stored)
    if not back:
        return ExpansionResult(window, (), missing)
    turns = [turn for turn in window.all_turns() if turn.resource_id not in back]
    since = next((turn.timestamp for turn in turns if is_placeholder(turn)), next(iter(back.values())).timestamp)
    changed = with_placeholder(window.with_folds({}, back), [*turns, *back.values()], since)
    return ExpansionResult(changed, tuple(back), missing)


def _restored(resource_id: str, stored: bytes, window: ContextWindow) -> Turn:
    if digest_of(stored) != window.folded[resource_id].digest:
        raise ArchiveCorrupted(resource_id)
    document = orjson.loads(stored)
    return Turn.from_document(document, window.counter.count(document["content"]))


# Which turns stay when turns are paged out: what the user and the system asked to keep, within a separate budget.
#
# Source: docs/specification/agents.md section 4.

GIST_TOKENS: Final = 24
"""Of what a model is told of a turn that is kept and for which the budget has no room."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the kept turns share their budget. One that is in neither has no room at all."""

    whole: frozenset[str]
    """Those that stay as they are."""
    gists: Mapping[str, Turn]
    """Those of which a model is told the gist once they are paged out, and those of which it is told it already."""
    tokens: int
    """Of both, at most the budget."""


def keeping(window: ContextWindow, movable: Iterable[Turn], budget: int) -> Keeping:
    """Return what of the movable turns stays within a budget of tokens.

    The gist of each comes before the whole of any. Higher ranks come first; within a rank the newest gets its gist
    first, and the shortest stays whole first.
    """
    first_words = first_words_of(window)
    kept = {turn.resource_id: rank for turn in movable if (rank := rank_of(window, turn, first_words))}
    whole = {turn.resource_id: turn for turn in movable if turn.resource_id in kept}
    gists = {key: _gist(turn, window) for key, turn in whole.items()} | dict(window.gists)
    ranks = {key: kept.get(key) or max(1, rank_of(window, gist, None)) for key, gist in gists.items()}
    left, chosen = budget, dict[str, Turn]()
    for key in sorted(gists, key=lambda key: (-ranks[key], -gists[key].ordinal)):
        shorter = min((whole.get(key, gists[key]), gists[key]), key=lambda turn: turn.tokens)
        if shorter.tokens <= left:
            chosen[key], left = shorter, left - shorter.tokens
    for key in sorted(whole, key=lambda key: (-ranks[key], whole[key].tokens, -whole[key].ordinal)):
        if key in chosen and whole[key].tokens - chosen[key].tokens <= left:
            left -= whole[key].tokens - chosen[key].tokens
            chosen[key] = whole[key]
    stays = frozenset(key for key, turn in chosen.items() if turn is whole.get(key))
    return Keeping(stays, {key: turn for key, turn in chosen.items() if key not in stays}, budget - left)


def rank_of(window: ContextWindow, turn: Turn, first_words: str | None) -> int:
    """Return how long a turn is kept when turns are paged out; 0 = it goes first, oldest first.

    3: what was made PRESERVED, or what the user or the system marked as such. 2: what the system says, other marks of
    the user, and the user's first words. 1: marks of an answer. Marks in foreign text count for nothing: its author
    could push out what the user asked to keep.
    """
    resource_class = window.class_of(turn)
    if resource_class is ResourceClass.DROPPABLE:
        return 0
    is_preserved = resource_class is ResourceClass.PRESERVED
    if any(event.event in _DELIBERATE for event in window.linearity.provenance(turn.resource_id)[1:]):
        return 3 if is_preserved else 2
    if turn.resource_id == first_words:
        return 2
    mark = ResourceClass.DROPPABLE if _is_foreign(turn) else classify_by_marker(turn.content)
    if turn.role is TurnRole.ASSISTANT:
        return int(mark is not ResourceClass.DROPPABLE)
    if mark is ResourceClass.PRESERVED:
        return 3
    return 2 if turn.role is TurnRole.SYSTEM or mark is ResourceClass.REQUIRED else 0


_DELIBERATE: Final = ("tagged", "promoted")
"""Events after a turn has come that somebody has caused."""


def _is_foreign(turn: Turn) -> bool:
    return turn.role is TurnRole.TOOL or SOURCE in turn.metadata or LEVEL in turn.metadata


def first_words_of(window: ContextWindow) -> str | None:
    """Return the id of the first turn of the user; None when it is paged out, or has not come yet."""
    for turn in window.all_turns():
        if is_placeholder(turn):
            return None
        if turn.role is TurnRole.USER:
            return turn.resource_id
    return None


def _gist(turn: Turn, window: ContextWindow) -> Turn:
    name = f"[{turn.resource_id}, shortened]\n"
    count = window.counter.count
    text = marked_lines(turn.content) or turn.content
    content = name + ExtractiveSummarizer(window.counter).extract(text, max(1, GIST_TOKENS - count(name)))
    return turn.saying(content, count(content))


# Takes turns out verbatim when what compression must not touch is too much already.
#
# Source: docs/specification/agents.md section 4.

PLACEHOLDER_TOKENS = 32
"""Room that is kept for the placeholder."""


def page_out(result: CompressionResult, down_to: float, keep_recent: int, budget: int = 0) -> CompressionResult:
    """Return what a compression left above its target, less its oldest turns, until the pressure is `down_to`.

    Turns that are kept stay within `budget` tokens; those that exceed it go last, and a gist of each stays as far as
    the budget has room. The initial system prompt stays, the newest `keep_recent` turns too. The turns stay whole in
    the store, and a placeholder with their ids stays in the window.
    """
    window, chosen = result.window, dict[str, Turn]()
    movable = movable_turns(window, keep_recent)
    kept = keeping(window, movable, budget)
    told = {key: gist for key, gist in window.gists.items() if key in kept.gists}
    has_placeholder = any(is_placeholder(turn) for turn in window.all_turns())
    total = window.with_gists(told).total_tokens + (0 if has_placeholder else PLACEHOLDER_TOKENS)
    for turn in _candidates(window, movable, kept):
        if fits(total, window, down_to):
            break
        chosen[turn.resource_id] = turn
        if turn.resource_id in kept.gists:
            told[turn.resource_id] = kept.gists[turn.resource_id]
            total += told[turn.resource_id].tokens
        total -= turn.tokens
    paged = {key: folded_turn(turn, Folding.PAGED, window.class_of(turn)) for key, turn in chosen.items()}
    changed = window.with_folds({key: one.fold for key, one in paged.items()}).with_gists(told)
    if chosen:
        turns = window.all_turns()
        since = next(turn.timestamp for turn in turns if is_placeholder(turn) or turn.resource_id in chosen)
        changed = with_placeholder(changed, (turn for turn in turns if turn.resource_id not in chosen), since)
    if changed.total_tokens >= window.total_tokens:
        return result  # Nothing may go, or the placeholder would take more room than the turns that it stands for.
    return replace(
        result,
        window=changed,
        target_met=fits(changed.total_tokens, changed, result.target_pressure),
        compressed_tokens=changed.total_tokens,
        folded=merged_folds(result.folded, tuple(paged.values())),
    )


def movable_turns(window: ContextWindow, keep_recent: int = 0) -> list[Turn]:
    """Return the turns that may be paged out: neither the newest, nor the initial system prompt, nor a placeholder."""
    turns = window.all_turns()
    old = turns[: max(0, len(turns) - keep_recent)]
    pinned = old[0] if old and is_pinned(window, old[0]) else None
    return [turn for turn in old if turn is not pinned and not is_placeholder(turn)]


def _candidates(window: ContextWindow, movable: Iterable[Turn], kept: Keeping) -> list[Turn]:
    """Return the turns that may go, in the order in which they go."""
    first_words = first_words_of(window)
    able = [turn for turn in movable if window.class_of(turn) is not ResourceClass.DROPPABLE]
    ranked = [(rank_of(window, turn, first_words), turn) for turn in able if turn.resource_id not in kept.whole]
    return [turn for _, turn in sorted(ranked, key=lambda one: (one[0], one[1].ordinal))]


def merged_folds(before: tuple[FoldedTurn, ...], after: tuple[FoldedTurn, ...]) -> tuple[FoldedTurn, ...]:
    """Merge two rounds of folding: each turn as it was before the first round, with its end in the last."""
    folded = {fold.turn.resource_id: fold for fold in before}
    for fold in after:
        first = folded.get(fold.turn.resource_id)
        folded[fold.turn.resource_id] = fold if first is None else replace(fold, turn=first.turn, stored=first.stored)
    return tuple(sorted(folded.values(), key=lambda fold: fold.turn.ordinal))


def is_pinned(window: ContextWindow, turn: Turn) -> bool:
    """Return whether a turn is the initial system prompt."""
    return window.linearity.provenance(turn.resource_id)[0].source == INITIAL_PROMPT


# The record of a compression, and its way into the log.
#
# Source: docs/specification/agents.md section 4; issue 5: "compression is an audited, reversible act".

MAX_FOLDED_PER_PACKET: Final = 500
"""Some 120 kB of metadata: well below the 256 KiB of a packet."""


@dataclass(frozen=True, slots=True)
class FoldRecord:
    """One folded turn: the SHA-256 of the stored turn before, and of its summary where one stands for it."""

    resource_id: str
    how: Folding
    resource_class: ResourceClass
    digest_before: str
    digest_after: str | None

    def to_document(self) -> dict[str, Any]:
        """Return JSON: id, how, class, before, after."""
        document = {
            "id": self.resource_id,
            "how": self.how.value,
            "class": self.resource_class.name,
            "before": self.digest_before,
        }
        return document if self.digest_after is None else document | {"after": self.digest_after}


@dataclass(frozen=True, slots=True)
class CompressionAudit:
    """One compression of one session. `cause`: pressure, requested or dropped."""

    session_id: str
    cause: str
    target_pressure: float | None
    target_met: bool
    tokens_before: int
    tokens_after: int
    digest_before: str
    """Of the whole window."""
    digest_after: str
    folded: tuple[FoldRecord, ...]

    def metadata(self) -> list[dict[str, Any]]:
        """Return the metadata of the packets that tell it, one for each 500 folded turns.

        `{"context": {"event": "compressed", "session", "cause", "target_pressure", "target_met",
        "tokens": {"before", "after"}, "digest": {"before", "after"}, "part", "parts",
        "folded": [{"id", "how", "class", "before", "after"?}, …]}}`
        """
        starts = range(0, max(1, len(self.folded)), MAX_FOLDED_PER_PACKET)
        return [{"context": self._part(number, len(starts), start)} for number, start in enumerate(starts, 1)]

    def _part(self, number: int, count: int, start: int) -> dict[str, Any]:
        return {
            "event": "compressed",
            "session": self.session_id,
            "cause": self.cause,
            "target_pressure": self.target_pressure,
            "target_met": self.target_met,
            "tokens": {"before": self.tokens_before, "after": self.tokens_after},
            "digest": {"before": self.digest_before, "after": self.digest_after},
            "part": number,
            "parts": count,
            "folded": [one.to_document() for one in self.folded[start : start + MAX_FOLDED_PER_PACKET]],
        }


OnCompression = Callable[[CompressionAudit], Awaitable[None]]
"""Told of every compression before its window is used; what it raises undoes the compression."""


def recorded(
    session_id: str,
    cause: str,
    before: ContextWindow,
    after: ContextWindow,
    folded: tuple[FoldedTurn, ...],
    target: float | None = None,
    *,
    target_met: bool = True,
) -> CompressionAudit:
    """Return the record of a compression."""
    return CompressionAudit(
        session_id=session_id,
        cause=cause,
        target_pressure=target,
        target_met=target_met,
        tokens_before=before.total_tokens,
        tokens_after=after.total_tokens,
        digest_before=before.digest,
        digest_after=after.digest,
        folded=tuple(_record(one) for one in folded),
    )


def _record(folded: FoldedTurn) -> FoldRecord:
    after = None if folded.summary is None else folded.summary.digest
    return FoldRecord(folded.turn.resource_id, folded.how, folded.resource_class, folded.digest, after)


def audit_payload(metadata: Mapping[str, Any]) -> SignalPayload:
    """Build the payload for this metadata of an audit: its reason holds the SHA-256, without the session's id."""
    audited = {name: value for name, value in metadata["context"].items() if name != "session"}
    digest = digest_of(orjson.dumps(audited, option=orjson.OPT_SORT_KEYS))
    return SignalPayload(signal=Signal.QUERY, reason=f"context compressed, metadata sha256:{digest}")


def emit_compressions(ctx: Emits) -> OnCompression:
    """Return a callback that sends each compression as an INTRA_AGENT SIGNAL QUERY, so that the log has it.

    The packet never reaches another agent; the gate logs it. `emit` derives its id from the handled packet, so that
    a handler that runs again tells it once. The reason holds the SHA-256 of the metadata, which is no part of the
    payload_hash: a handler that folds something else when it runs again is recorded as a rerun, not taken for a repeat.
    The session's id is left out of it: two sessions that fold the same say the same. Phase and generation are those of
    the handled packet, whatever has begun since.
    """

    async def emit(audit: CompressionAudit) -> None:
        for metadata in audit.metadata():
            await ctx.emit(
                audit_payload(metadata),
                to=ctx.agent.agent_id,
                channel=Channel.INTRA_AGENT,
                run_phase=ctx.packet.run_phase,
                generation=ctx.packet.trace.generation,
                metadata=metadata,
            )

    return emit
