"""`apc packet replay --verify` and `--what-if`: a run played again, from whatever holds its entries."""

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from apc_contracts.contract.contract import Contract, contract_from_bytes
from apc_contracts.replay import Change, Entry, RecordedPacket, ReplayDiffers, ReplayImpossible, SessionReplay
from apc_contracts.replay.what_if import WhatIf


class Records(Protocol):
    """Where the entries of a run come from: the database, or an exported bundle."""

    async def sessions(self, run_id: str) -> list[str]:
        """Return the sessions of the run, in the order in which they began."""
        ...

    async def document(self, session_id: str) -> Mapping[str, Any] | None:
        """Return the session's last state document; None when there is none to compare with."""
        ...

    def batches(self, session_id: str) -> AsyncIterator[list[Entry]]:
        """Yield the entries of a session in the order of the log, those of one log batch at a time."""
        ...

    async def contract(self, contract_hash: bytes) -> bytes | None:
        """Return the contract file with this hash; None when it is not held."""
        ...


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found. `problem` is the first difference, or what the replay could not do without."""

    run_id: str
    sessions: int
    packets: int
    hops: int
    transitions: int
    problem: ReplayDiffers | ReplayImpossible | None
    decisions: int = 0
    """Decisions that were looked at under the other contract."""
    changes: tuple[Change, ...] = ()


class ContractBook:
    """Contracts by hash: the available ones first, then the ones that the log holds."""

    def __init__(self, records: Records, available: Iterable[Contract]) -> None:
        self._records = records
        self._known: dict[bytes, Contract | None] = {contract.hash: contract for contract in available}

    async def look_up(self, entries: Iterable[Entry]) -> None:
        """Load the contracts of these entries."""
        for entry in entries:
            if isinstance(entry, RecordedPacket) and entry.contract_hash not in self._known:
                body = await self._records.contract(entry.contract_hash)
                found = None if body is None else contract_from_bytes(body)
                self._known[entry.contract_hash] = found

    def get(self, contract_hash: bytes) -> Contract | None:
        """Return the contract with this hash, once it was looked up."""
        return self._known.get(contract_hash)


async def verify_run(
    records: Records, run_id: str, contracts: Iterable[Contract], other: Contract | None = None
) -> Replayed:
    """Recompute every verdict, hop and transition of a run from (bytes, facts, contract), up to the first difference.

    `contracts` are available beside those that the log holds; `other` is the contract of a what-if.
    """
    book = ContractBook(records, contracts)
    what_if = None if other is None else WhatIf(other)
    replays: list[SessionReplay] = []
    problem: ReplayDiffers | ReplayImpossible | None = None
    try:
        for session_id in await records.sessions(run_id):
            replay = SessionReplay(session_id, book.get, what_if)
            replays.append(replay)
            await _replay_session(records, book, session_id, replay)
            replay.session = None  # its counts are all that is still needed
    except (ReplayDiffers, ReplayImpossible) as found:
        problem = found
    return Replayed(
        run_id,
        len(replays),
        sum(replay.packets for replay in replays),
        sum(replay.hops for replay in replays),
        sum(replay.transitions for replay in replays),
        problem,
        0 if what_if is None else what_if.decisions,
        () if what_if is None else tuple(what_if.changes),
    )


async def _replay_session(records: Records, book: ContractBook, session_id: str, replay: SessionReplay) -> None:
    last: Entry | None = None
    async for batch in records.batches(session_id):
        await book.look_up(batch)
        replay.take(batch)
        last = batch[-1]
    document = await records.document(session_id)
    if document is not None and last is not None:
        replay.check_document(document, (last.shard, last.seq))
