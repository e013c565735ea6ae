"""The table of the cluster run and its file, build/cluster.json."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
from tests.faults.cluster.accounting import Account, Facts, Window, look_at
from tests.faults.cluster.faults import Fault, Promise
from tests.faults.cluster.processes import ROOT, End

REPORT = ROOT / "build/cluster.json"
SHOWN = 5
"""Lines of each kind; the file has all of them."""
_FORM = "{:38.38} {:>7} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7} {:>6}  {}"
_HEADING = ("fault", "started", "ended", "s.gap", "start", "accept", "commit", "handle", "raised", "promise")

_NAMES = {"start_gap": "s.gap", "accept_wait": "accept", "commit_wait": "commit", "handle_wait": "handle"}


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault as it was done; `hit` is None when it could not be."""

    fault: Fault
    began: float
    hit: str | None
    reason: str = ""
    """Why it could not be done."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a run has found."""

    facts: Facts
    account: Account
    struck: Sequence[Struck]
    began: float
    driven_until: float
    ends: Sequence[End]
    exit_codes: dict[str, int | None]
    """After SIGTERM, in the end; None = it did not run or had to be killed."""
    verified: tuple[int, str]
    """Exit code and words of `apc log verify`."""

    @property
    def violations(self) -> list[str]:
        """Return what must not be, but for a promise that was missed: a busy machine may miss one."""
        account = self.account
        found = [f"lost: {len(account.lost)}"] if account.lost else []
        found += [f"doubled: {len(account.doubled)}"] if account.doubled else []
        found += [f"halted, {count} sessions: {reason}" for reason, count in account.halted.items()]
        found += [f"wrong results: {len(account.wrong)}"] if account.wrong else []
        found += [f"conflicts of kind {kind}: {count}" for kind, count in account.unexplained_conflicts.items()]
        found += [f"{end.process} ended by itself with {end.code}" for end in self.ends]
        ended = {end.process for end in self.ends}
        found += [
            f"{name} left with {code} after SIGTERM"
            for name, code in self.exit_codes.items()
            if code != 0 and not (code is None and name in ended)
        ]
        found += [f"`apc log verify` exits with {self.verified[0]}"] if self.verified[0] else []
        found += [f"not exercised: {one.fault.name}: {one.reason}" for one in self.struck if one.hit is None]
        return found

    def windows(self) -> Iterator[tuple[str, Promise | None, Window]]:
        """Yield title, promise and figures of the time before the first fault, and of each fault."""
        begins = [self.began, *(one.began for one in self.struck), self.driven_until]
        titles = [("before the faults", None), *((one.fault.title, one.fault.promise) for one in self.struck)]
        for (title, promise), (begin, end) in zip(titles, pairwise(begins), strict=True):
            yield title, promise, look_at(self.facts, begin, end)


def figure_of(window: Window, promise: Promise) -> float:
    """Return the figure of a window that a promise bounds."""
    return float(getattr(window, promise.figure))


def lines_of(outcome: Outcome) -> Iterator[str]:
    """Yield the table of the run, then what is wrong."""
    yield _FORM.format(*_HEADING)
    for title, promise, window in outcome.windows():
        waits = (window.start_gap, window.start_wait, window.accept_wait, window.commit_wait, window.handle_wait)
        seconds = [f"{wait:.2f} s" for wait in waits]
        yield _FORM.format(title, window.started, window.ended, *seconds, window.failures, _kept(window, promise))
    facts, account = outcome.facts, outcome.account
    started = sum(one.session_id is not None for one in facts.asked)
    ended = sum(one.is_right is not None for one in facts.asked)
    messages = sum(row.is_accepted and row.packet_type == "MESSAGE" for row in facts.rows)
    yield f"sessions asked {len(facts.asked)}, started {started}, with a result {ended}; messages accepted {messages}"
    yield f"handlers ran again for {_repeated(facts)} packets (at least once); conflicts {dict(facts.conflicts) or 0}"
    for title, found in (("lost", account.lost), ("doubled", account.doubled), ("wrong results", account.wrong)):
        yield f"{title} {len(found)}"
        yield from (f"    {line}" for line in found[:SHOWN])
    yield f"halted {sum(account.halted.values())}"
    yield from (f"    {count} times: {reason}" for reason, count in account.halted.items())
    yield f"ended by themselves {len(outcome.ends)}"
    yield from (f"    {end.process} with {end.code}" for end in outcome.ends)
    yield f"exit codes after SIGTERM {outcome.exit_codes}"
    yield f"`apc log verify` exits with {outcome.verified[0]}"


def _kept(window: Window, promise: Promise | None) -> str:
    if promise is None:
        return "-"
    figure = figure_of(window, promise)
    says = "kept" if figure <= promise.seconds else "MISSED"
    return f"{says}: {_NAMES[promise.figure]} {figure:.2f} <= {promise.seconds:g} s ({promise.words})"


def _repeated(facts: Facts) -> int:
    runs: dict[Any, int] = {}
    for note in facts.notes:
        if note.kind == "run":
            runs[note.packet_id] = runs.get(note.packet_id, 0) + 1
    return sum(count > 1 for count in runs.values())


def write(outcome: Outcome, path: Path = REPORT) -> None:
    """Write everything but the single packets."""
    document = {
        "faults": [
            {
                "fault": title,
                "figures": asdict(window),
                "promise": None if promise is None else asdict(promise),
                "kept": None if promise is None else figure_of(window, promise) <= promise.seconds,
            }
            for title, promise, window in outcome.windows()
        ],
        "hit": {one.fault.name: one.hit for one in outcome.struck},
        "sessions": len(outcome.facts.asked),
        "account": {field.name: getattr(outcome.account, field.name) for field in fields(outcome.account)},
        "conflicts": dict(outcome.facts.conflicts),
        "ended_by_themselves": [asdict(end) for end in outcome.ends],
        "exit_codes": outcome.exit_codes,
        "log_verify": outcome.verified[0],
        "violations": outcome.violations,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
