"""The scorecard of `apc up --chaos`: the injected faults, and what became of the packets."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

import asyncpg

from apc_bus.chaos import Score
from apc_bus.folders import make_private_folder
from apc_console.errors import LogDiffers
from apc_console.output.output import print_json, to_json
from apc_contracts.text import numbered
from apc_log.queries.health import count_conflicts, count_deliveries, count_retried, count_verdicts, find_logged

SCORES = "chaos"
"""Folder in the data folder: one file per agent process, and the scorecard of the last run."""
SCORECARD = "scorecard.json"
SHOWN = 5
SOME_TIME_AGO = "SELECT now() - $1::interval"


@dataclass(frozen=True, slots=True)
class Scorecard:
    """The result of a run under chaos. Counts of the log cover everything since the run began."""

    struck: Mapping[str, int]
    confirmed: int
    """Packets that the broker confirmed to agents."""
    lost: tuple[str, ...]
    """Those of them that the log does not hold: there must be none."""
    in_doubt: int
    """Packets whose publish had an unknown outcome and was not repeated."""
    in_doubt_and_logged: int
    """Those of them that were logged."""
    verdicts: Mapping[str, int]
    set_aside: Mapping[str, int]
    deliveries: Mapping[str, int]
    retried: int


class Scorer:
    """Keeps the score of one run of `apc up --chaos`; `began` is the database's time at its start."""

    def __init__(self, pool: asyncpg.Pool, folder: Path, began: datetime) -> None:
        self._pool = pool
        self._folder = folder
        self._began = began

    @classmethod
    async def start(cls, pool: asyncpg.Pool, folder: Path, ago: timedelta) -> "Scorer":
        """Start the score of a run that began `ago` earlier; agents' processes leave their scores in `folder`."""
        return cls(pool, folder, await pool.fetchval(SOME_TIME_AGO, ago))

    async def finish(self) -> None:
        """Print the scorecard and save it, once everything is drained.

        Raises:
            LogDiffers: a packet that the broker confirmed is not in the log.
        """
        scorecard = await self._add_up(Score.read(self._folder))
        document = asdict(scorecard)
        (self._folder.parent / SCORECARD).write_bytes(to_json(document))
        print_json(document)
        if scorecard.lost:
            shown = ", ".join(scorecard.lost[:SHOWN])
            lost = numbered(len(scorecard.lost), "confirmed packet is", "confirmed packets are")
            raise LogDiffers(f"{lost} not in the log: {shown}")

    async def _add_up(self, score: Score) -> Scorecard:
        ids = [UUID(one) for one in score.confirmed | score.unknown]
        logged = await find_logged(self._pool, ids)
        return Scorecard(
            struck=dict(sorted(score.struck.items())),
            confirmed=len(score.confirmed),
            lost=tuple(sorted(score.confirmed - logged)),
            in_doubt=len(score.unknown),
            in_doubt_and_logged=len(score.unknown & logged),
            verdicts=await count_verdicts(self._pool, self._began),
            set_aside=await count_conflicts(self._pool, self._began),
            deliveries=await count_deliveries(self._pool, self._began),
            retried=await count_retried(self._pool, self._began),
        )


def prepare(data_dir: Path) -> Path:
    """Return an empty folder for the scores of a run."""
    folder = data_dir / SCORES / "agents"
    make_private_folder(folder)
    for path in folder.glob("*.json"):
        path.unlink()
    return folder
