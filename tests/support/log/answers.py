"""The readings of the log, each with what it is asked for: before and after a release they give the same."""

import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Self

import asyncpg

import apc_log.queries
from apc_contracts.contract.contract import load_contract
from apc_log.errors import ArchiveUnavailable
from apc_log.queries.dead import DeliveryId
from apc_log.queries.news import Passage
from apc_log.queries.packets import list_agent_packets
from apc_log.queries.replay import replay
from apc_log.queries.session_pages import CountedRanges

EARLY = datetime(2020, 1, 1, tzinfo=UTC)
SESSION, RUN = "session-of-run-0", "run-0"
WHOLE = frozenset(
    "page_of_arbitrations count_set_aside list_dead count_unstored entries_of_shard ids_that_end count_deliveries "
    "list_news list_refused count_verdicts count_late_heartbeats past_trials count_conflicts count_retried "
    "list_invocations count_recent".split()
)
"""Looks at the whole log, or all of a time: an error with an archive as well."""


def readings() -> Iterator[tuple[str, Callable[..., Awaitable[Any]]]]:
    """Yield every public reading of the log's queries, by its name."""
    for module in pkgutil.iter_modules(apc_log.queries.__path__):
        found: ModuleType = importlib.import_module(f"apc_log.queries.{module.name}")
        for name, function in vars(found).items():
            if inspect.isfunction(function) and function.__module__ == found.__name__ and name[0] != "_":
                if next(iter(inspect.signature(function).parameters), "") in ("pool", "connection"):
                    yield name, function


async def arguments(pool: asyncpg.Pool, shard: int = 0) -> dict[str, Any]:
    """Return for each name of a parameter what the readings are asked for."""
    rows = await list_agent_packets(pool, session_id=SESSION, limit=50)
    claim = next(row for row in rows if row.packet_type == "CLAIM")
    last = await pool.fetchval("SELECT next_seq - 1 FROM apc_log.shards WHERE shard = $1", shard)
    delivery = DeliveryId(SESSION, rows[0].packet_id, rows[0].recipients[0])
    return {
        **{"session_id": SESSION, "run_id": RUN, "packet_id": claim.packet_id, "limit": 100, "shard": shard},
        **{"place": rows[0].position, "places": [row.position for row in rows], "position": rows[0].position},
        **{"positions": [row.seq for row in rows], "after": 0, "last": last, "width": 1000, "newest": False},
        **{"given": {"session_id": SESSION}, "look_at": 500, "text": "word", "packets": rows, "since": EARLY},
        **{"step": timedelta(days=1000), "days": 3000, "packet_ids": [row.packet_id for row in rows]},
        **{"delivery": delivery, "deliveries": [delivery], "named": None, "done": claim.packet_id, "user": "u"},
        **{"passage": Passage({shard: last}), "wanted": [(SESSION, row.packet_id) for row in rows], "only": RUN},
        **{"answers": [], "sender": claim.sender_agent_id, "halt_reason": None, "dead": [], "agent_id": "receiver-0"},
        **{"contract": load_contract(), "silence": timedelta(minutes=1), "packet_types": ["CLAIM"], "but_not": "x"},
        **{"most_runs": 10, "kind": "packet", "end": str(claim.packet_id)[-6:]},
    }


def given_to(name: str, function: Callable[..., Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a reading: what it cannot do without, and what narrows it."""
    given: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= {"session_id": SESSION} if name not in ("page_of_arbitrations",) else {}
        elif parameter.default is parameter.empty:
            given[parameter.name] = known.get(parameter.name)
    if name == "effects_of":
        given["packets"] = known["wanted"]
    if name in ("run_packets",):
        given.pop("after", None)
    if name == "session_figures":
        given["place"] = type("Place", (), {"session_id": SESSION, "shard": known["shard"]})()
    if name in ("page_of_packets",):
        given["after"] = None
    if name == "search_packets":
        given["after"] = None
    return given


def comparable(result: Any) -> Any:
    """Return a result without what has no order: the counts of a range."""
    if isinstance(result, CountedRanges):
        return Counter(result.packets), Counter(map(repr, result.hops)), result.single
    return result


@dataclass(frozen=True, slots=True)
class Answers:
    """What each complete reading has answered."""

    asked: Mapping[str, tuple[Callable[..., Awaitable[Any]], Mapping[str, Any]]]
    given: Mapping[str, Any]
    replayed: list[Any]

    @classmethod
    async def of(cls, pool: asyncpg.Pool, shard: int = 0) -> Self:
        """Ask every reading for a session of a shard."""
        known = await arguments(pool, shard)
        complete = {name: function for name, function in readings() if "reads" in vars(function)}
        asked = {name: (function, given_to(name, function, known)) for name, function in complete.items()}
        given = {name: await function(pool, **given) for name, (function, given) in asked.items()}
        return cls(asked, given, [row async for row in replay(pool, RUN)])

    async def compare(self, pool: asyncpg.Pool) -> None:
        """Ask again: each answer is as before, or an error of a reading that looks at the whole log."""
        refused, wrong = set[str](), list[str]()
        for name, (function, given) in self.asked.items():
            try:
                result = await function(pool, **given)
            except ArchiveUnavailable as error:
                assert "only sessions, runs and packets are looked for" in str(error), name
                refused.add(name)
            except Exception as error:
                wrong.append(f"{name} {error!r}"[:300])
            else:
                if name == "read_surroundings":
                    result = replace(result, now=self.given[name].now)
                wrong += [] if comparable(result) == comparable(self.given[name]) else [name]
        assert wrong == []
        assert refused == WHOLE
        assert [row async for row in replay(pool, RUN)] == self.replayed
