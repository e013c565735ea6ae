"""Loops: the same content from one sender, and senders who answer each other with nothing new.

An *idle chain* runs through causes or parents since a packet last brought a symbolic key or an evidence_ref that the
session had not seen. A sender who speaks again in a chain, after somebody else, takes one *idle turn*: a cycle of n
senders takes n idle turns per round.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IdleChain:
    """The chain that a packet extends: its idle turns so far, and who has spoken."""

    idle_turns: int
    voices: frozenset[str]


@dataclass(frozen=True, slots=True)
class LoopState:
    """What the session remembers about one packet for the loop guard.

    `repeats` counts admitted packets of the same sender, payload, recipients and generation since the session's
    generation opened; `chain` is None when the packet begins one.
    """

    repeats: int = 0
    chain: IdleChain | None = None

    @property
    def idle_turns(self) -> int:
        """The idle turns of the chain, 0 without one."""
        return 0 if self.chain is None else self.chain.idle_turns

    @property
    def record(self) -> Record:
        """Return the JSON form for the log; empty when there is nothing to record."""
        record: Record = {"repeats": self.repeats} if self.repeats else {}
        if self.chain is not None:
            record |= {"idle_turns": self.chain.idle_turns, "voices": sorted(self.chain.voices)}
        return record


NO_LOOP = LoopState()


def read_loop(record: Record | None) -> LoopState:
    """Return the state recorded by `LoopState.record`; `NO_LOOP` for None."""
    if not record:
        return NO_LOOP
    chain = _idle_chain(record["idle_turns"], *record["voices"]) if "voices" in record else None
    return LoopState(record.get("repeats", 0), chain)


# Memoised: thousands of packets extend the same few chains, and each is kept as long as its packet is remembered.
@lru_cache(4096)
def extend(before: IdleChain | None, last_speaker: str, sender: str) -> IdleChain | None:
    """Return the chain after a packet with nothing new; `before` and `last_speaker` are those of what it answers.

    None while there is one voice: a sender that continues alone takes no idle turns.
    """
    if before is None:
        return None if sender == last_speaker else _idle_chain(0, *sorted((last_speaker, sender)))
    if sender == last_speaker:
        return before
    turns = before.idle_turns + (sender in before.voices)
    return _idle_chain(turns, *sorted(before.voices | {sender}))


def longest(chains: Iterable[IdleChain | None]) -> IdleChain | None:
    """Return the chain with the most idle turns: naming another parent than the cause does not restart the count."""
    return max((one for one in chains if one is not None), key=lambda one: one.idle_turns, default=None)


@lru_cache(4096)
def _idle_chain(idle_turns: int, *voices: str) -> IdleChain:
    return IdleChain(idle_turns, frozenset(voices))
