"""The calls of one run of a handler, and the records of earlier runs, which are found by what was called."""

from collections import defaultdict
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from apc_agents.errors import AgentError
from apc_agents.waiting.recorded_outcomes import encode_error, encode_value
from apc_agents.waiting.records import RecordedCall

Subject = Callable[[], str]
"""Says what a call was made with; asked only when the handler waits, or repeats its records."""


class Call:
    """A call of this run, with its outcome as it is; encoded only when the handler waits."""

    __slots__ = ("_digest", "error", "is_beside", "is_done", "journal", "op", "previous", "subject", "value")

    def __init__(self, journal: object, op: str, subject: Subject, previous: "Call | None", *, is_beside: bool) -> None:
        self.journal = journal
        self.op = op
        self.subject = subject
        self.previous = previous
        """The last call before this one in the same task, or in those that started it."""
        self.is_beside = is_beside
        """Made in a task that the handler has started, not in the handler itself."""
        self.is_done = False
        self.value: Any = None
        self.error: Exception | None = None
        self._digest: str | None = None

    @property
    def place(self) -> str | None:
        """What tells the pipelines of a handler apart: a digest of the calls before this one."""
        return digest_up_to(self.previous) if self.is_beside else None

    def digest(self) -> str | None:
        """Return the digest of this call and those before it; None when nobody has asked for it yet."""
        return self._digest

    def digest_after(self, before: str) -> str:
        """Return the digest of this call after those with the digest `before`."""
        said = f"{before}/{self.op}/{self.subject()}"
        self._digest = sha256(said.encode()).hexdigest()[:16]
        return self._digest

    def entry(self) -> RecordedCall:
        """Return the record. Raises AgentError for a call that has not returned, and for what is no JSON."""
        if not self.is_done:
            raise AgentError(f"ctx.{self.op} had not returned when the handler began to wait: await it first")
        if self.error is not None:
            outcome = {"raised": encode_error(self.op, self.error)}
        else:
            outcome = {"returned": encode_value(self.op, self.value)}
        return RecordedCall(self.op, self.subject(), outcome, place=self.place)


class RecordedCalls:
    """The records of earlier runs, and which of them this run has come to."""

    def __init__(self, entries: list[RecordedCall]) -> None:
        self.entries = entries
        self._left = set(range(len(entries)))
        self._by_key: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        for number, entry in enumerate(entries):
            self._by_key[entry.op, entry.subject].append(number)
        self._ahead = [number for number, entry in enumerate(entries) if entry.is_wait]
        """The waits that are not passed."""

    @property
    def are_left(self) -> bool:
        """Whether this run has not come to all of them."""
        return bool(self._left)

    @property
    def are_waits_passed(self) -> bool:
        """Whether no recorded wait is ahead."""
        return not self._ahead

    @property
    def are_left_before_wait(self) -> bool:
        """Whether calls are left that were made before the next wait."""
        return bool(self._left) and bool(self._ahead) and min(self._left) < self._ahead[0]

    @property
    def are_left_beside(self) -> bool:
        """Whether all that is left before the next wait was made beside the handler, and something is."""
        end = self._ahead[0] if self._ahead else 0
        left = [number for number in self._left if number < end]
        return bool(left) and all(self.entries[number].place is not None for number in left)

    def take(self, call: Call, *, is_noted: bool = False) -> RecordedCall | None:
        """Return the record of a call that was made before the next wait, or is that wait; it is left no more.

        Args:
            is_noted: it is not awaited, and cannot be held until the wait is passed: beside the handler it may be one
                that an earlier run came to after the wait.
        """
        numbers = self._by_key.get((call.op, call.subject()), [])
        end = self._ahead[0] if self._ahead else len(self.entries)
        reaches_behind = is_noted and call.is_beside
        first = None
        for number in numbers:
            entry = self.entries[number]
            if (number > end and not reaches_behind) or (entry.is_wait and call.is_beside):
                break
            if number > end and entry.place is None:  # the handler's own
                continue
            first = number if first is None else first
            if entry.place == call.place:
                first = number
                break
        if first is None:
            return None
        numbers.remove(first)
        if not self.entries[first].is_wait:
            self._left.discard(first)
        return self.entries[first]

    def pass_wait(self) -> None:
        """Pass the next wait."""
        if self._ahead:
            self._left.discard(self._ahead.pop(0))

    def first_left(self, place: str | None) -> tuple[int, RecordedCall] | None:
        """Return the first record that is left, with its number from 1; if there is one, of this place."""
        left = sorted(self._left)
        if not left:
            return None
        number = next((one for one in left if place is not None and self.entries[one].place == place), left[0])
        return number + 1, self.entries[number]


NO_RECORDS = RecordedCalls([])


def digest_up_to(call: Call | None) -> str:
    """Return the digest of a call and those before it; not recursive, for there may be thousands."""
    calls = []
    while call is not None and call.digest() is None:
        calls.append(call)
        call = call.previous
    digest = "" if call is None else str(call.digest())
    for one in reversed(calls):
        digest = one.digest_after(digest)
    return digest
