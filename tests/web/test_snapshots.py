"""A session at a position is the same from snapshots of counted entries as from every entry by itself."""

import pytest
from tests.support.traffic.packets import make_packet, make_start
from tests.web.conftest import WebBench

from apc_contracts import IdeaPayload, SignalPayload
from apc_contracts.vocabulary import Signal
from apc_web import fold, timeline
from apc_web.fold import Folded, SessionSnapshots, Snapshots

SESSION = "s-1"


async def test_counted_ranges_fold_to_the_same_states(
    told: WebBench, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = make_start(budgets={"packets": 50})
    await told.house.publish(make_packet("librarian", SignalPayload(signal=Signal.PAUSE), parent=opening))
    await told.house.publish(make_packet("blue-1", idea, ("sentinel",), parent=opening, keys=("held",)))
    await told.house.quiet()
    await told.house.publish(make_packet("librarian", SignalPayload(signal=Signal.RESUME), parent=opening))
    await told.house.quiet()
    last = (await told.get(f"/sessions/{SESSION}"))["last_seq"]
    positions = range(last, 0, -1)
    alone = [await told.get(f"/sessions/{SESSION}/at/{seq}") for seq in positions]
    assert not told.services.snapshots.of(SESSION).seqs, "these were folded from the first entry"

    for width in (1, 3, 7):
        told.services.snapshots._sessions.clear()
        monkeypatch.setattr(timeline, "EVERY", width)
        monkeypatch.setattr(timeline, "_ENTRIES_A_PACKET", 1_000)
        monkeypatch.setattr(timeline, "_FAR", 0)
        counted = [await told.get(f"/sessions/{SESSION}/at/{seq}") for seq in positions]
        assert len(told.services.snapshots.of(SESSION).seqs) >= last // (2 * width)
        assert counted == alone
    assert {True, False} == {one["is_paused"] for one in alone}
    assert any("held" in one["verdicts"] for one in alone)


def test_snapshots_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MOST_SNAPSHOTS", 8)
    kept = SessionSnapshots()
    for seq in range(1, 101):
        kept.keep(Folded(seq=seq))

    assert len(kept.seqs) <= 8 and kept.before(101).seq == 100
    several = Snapshots()
    for number in range(100):
        several.of(f"s-{number}")
    assert len(several._sessions) == fold.MOST_SESSIONS
