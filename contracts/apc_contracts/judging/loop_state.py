"""Loops: the same content from one sender, and senders who answer each other with nothing new.

A *stretch* is the chain of causes or parents since a packet last brought a symbolic key or an evidence_ref that the
session had not seen. A sender who speaks again in a stretch, after somebody else, takes one *idle turn*: a cycle of n
senders takes n idle turns per round.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The chain that a packet extends: its idle turns so far, and who has spoken."""

    idle_turns: int
    voices: frozenset[str]


@dataclass(frozen=True, slots=True)
class LoopState:
    """What the session remembers about one packet for the loop guard.

    `repeats` counts admitted packets of the same sender, payload, recipients and generation since the session's
    generation opened; `stretch` is None when the packet begins one.
    """

    repeats: int = 0
    stretch: Stretch | None = None

    @property
    def idle_turns(self) -> int:
        """The idle turns of the stretch, 0 without one."""
        return 0 if self.stretch is None else self.stretch.idle_turns

    @property
    def record(self) -> Record:
        """Return the JSON form for the log; empty when there is nothing to record."""
        record: Record = {"repeats": self.repeats} if self.repeats else {}
        if self.stretch is not None:
            record |= {"idle_turns": self.stretch.idle_turns, "voices": sorted(self.stretch.voices)}
        return record


NO_LOOP = LoopState()


def read_loop(record: Record | None) -> LoopState:
    """Return the state recorded by `LoopState.record`; `NO_LOOP` for None."""
    if not record:
        return NO_LOOP
    stretch = _stretch(record["idle_turns"], *record["voices"]) if "voices" in record else None
    return LoopState(record.get("repeats", 0), stretch)


# Memoised: thousands of packets extend the same few stretches, and each is kept as long as its packet is remembered.
@lru_cache(4096)
def extend(before: Stretch | None, last_speaker: str, sender: str) -> Stretch | None:
    """Return the stretch after a packet with nothing new; `before` and `last_speaker` are those of what it answers.

    None while there is one voice: a sender that continues alone takes no idle turns.
    """
    if before is None:
        return None if sender == last_speaker else _stretch(0, *sorted((last_speaker, sender)))
    if sender == last_speaker:
        return before
    turns = before.idle_turns + (sender in before.voices)
    return _stretch(turns, *sorted(before.voices | {sender}))


def longest(stretches: Iterable[Stretch | None]) -> Stretch | None:
    """Return the stretch with the most idle turns: naming another parent than the cause does not restart the count."""
    return max((one for one in stretches if one is not None), key=lambda one: one.idle_turns, default=None)


@lru_cache(4096)
def _stretch(idle_turns: int, *voices: str) -> Stretch:
    return Stretch(idle_turns, frozenset(voices))
