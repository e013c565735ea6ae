"""Readings of a log over two databases: each gives what it gives of the same log in one."""

import asyncio
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import pytest
from tests.support.log.split import AWAY, SplitLog, split_log
from tests.support.servers import PostgresServer

import apc_log
import apc_log.queries
from apc_bus.database import open_pool
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import ApcError
from apc_contracts.explanation.surroundings import Surroundings
from apc_contracts.limits import DocumentLimits
from apc_contracts.session.session import Session
from apc_log.heads import READING, Gone, Reach
from apc_log.queries.dead import DeliveryId
from apc_log.queries.news import Passage
from apc_log.queries.packets import list_agent_packets
from apc_log.queries.run_cards import RunsWanted
from apc_log.queries.search import Wanted
from apc_log.queries.session_pages import CountedRanges
from apc_log.queries.troubles import TroubleFilters

pytestmark = [pytest.mark.postgres]
NOT_COMPARED = {
    "health.read_age": "seconds until now",
    "health.read_seconds_ahead": "seconds until now",
    "protocol_evidence.read_ledger": "fills what it is given",
    "protocol_evidence.read_shards": "fills what it is given",
    "protocol_evidence.read_evidence": "of gates: one database after the other",
    "registry.read_later_changes": "of gates: one database beside another",
    "session_loading.load_session": "of gates: in the shard's own database",
    "troubles.acknowledge": "writes",
    "placement.move_shard": "writes",
    "health.read_growth": "the size of the home database",
    "health.days_here": "the size of the home database",
}


@pytest.fixture(scope="module")
def log(fdw_server: PostgresServer) -> Iterator[SplitLog]:
    """A log of two shards in one database, and over two."""
    with asyncio.Runner() as runner:
        context = split_log(fdw_server)
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
async def whole(log: SplitLog) -> AsyncIterator[asyncpg.Pool]:
    """The log in one database."""
    pool = await open_pool(log.whole, max_size=4, server_settings=READING)
    yield pool
    await pool.close()


@pytest.fixture
async def both(log: SplitLog) -> AsyncIterator[asyncpg.Pool]:
    """The same log over two, as a reader reads it."""
    settings = {"role": "apc_reader", "default_transaction_read_only": "on", **READING}
    pool = await open_pool(log.home, max_size=4, server_settings=settings, parts={AWAY: [1]})
    yield pool
    await pool.close()


def readings() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield everything public that reads the log over a pool or a connection, by its name."""
    packages = ((apc_log.__path__, "apc_log"), (apc_log.queries.__path__, "apc_log.queries"))
    for path, package in packages:
        for module in pkgutil.iter_modules(path):
            found = importlib.import_module(f"{package}.{module.name}")
            for name, function in vars(found).items():
                is_reading = inspect.iscoroutinefunction(inspect.unwrap(function)) and name[0] != "_"
                if not is_reading or function.__module__ != found.__name__:
                    continue
                if next(iter(inspect.signature(function).parameters), "") in ("pool", "connection"):
                    yield f"{found.__name__.rpartition('.')[2]}.{name}", function


EARLY, LATE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)
RUN = "run-0"
"""Has a session in each database."""


async def arguments(pool: asyncpg.Pool, session_id: str, shard: int) -> dict[str, Any]:
    """Return for each name of a parameter what the readings are asked for."""
    rows = await list_agent_packets(pool, session_id=session_id, limit=50)
    claim = next(row for row in rows if row.packet_type == "CLAIM")
    ends = {row[0]: row[1] for row in await pool.fetch("SELECT shard, next_seq - 1 FROM apc_log.shards")}
    delivery = DeliveryId(session_id, rows[0].packet_id, rows[0].recipients[0])
    wanted = [(session_id, row.packet_id) for row in rows]
    days: dict[str, Any] = {"since": EARLY, "until": LATE, "step": timedelta(days=1000)}
    contract = load_contract()
    return {
        **{"session_id": session_id, "run_id": RUN, "packet_id": claim.packet_id, "limit": 100, "shard": shard},
        **{"place": rows[0].position, "places": [row.position for row in rows], "position": rows[0].position},
        **{"positions": [row.seq for row in rows], "after": 0, "last": ends[shard], "width": 1000, "newest": False},
        **{"given": {"session_id": session_id}, "look_at": 500, "text": "word", "packets": rows, **days},
        **{"days": 3000, "packet_ids": [row.packet_id for row in rows], "delivery": delivery, "rows": rows},
        **{"deliveries": [delivery], "named": claim.packet_id, "done": claim.packet_id, "user": "u"},
        **{"passage": Passage(ends), "wanted": wanted, "only": RUN, "but_not": "x", "most_runs": 10},
        **{"answers": [], "sender": claim.sender_agent_id, "halt_reason": None, "dead": [], "agent_id": "sender-1"},
        **{"contract": contract, "silence": timedelta(minutes=1), "packet_types": ["CLAIM"], "kind": "packet"},
        **{"end": str(claim.packet_id)[-6:], "shares": (0.5, 0.95), "opener": "user-1", "run_ids": [RUN, "run-3"]},
        **{"session_ids": [session_id], "sessions": [session_id], "reach": Reach(runs=[RUN]), "ids": ["agent-0"]},
        **{"holder": uuid4(), "change": uuid4(), "changes": [uuid4()], "shards": 2, "digest": contract.hash.hex()},
        **{
            "default": contract,
            "contracts": Contracts(contract, ()),
            "filters": TroubleFilters(EARLY, LATE),
            "ring": None,
        },
        **{"filters": TroubleFilters(EARLY, LATE)},
        **{"entries": 1000, "most": 10, "now": datetime(2026, 12, 1, tzinfo=UTC), "rests_on_nothing": None},
        **{"key_ids": [uuid4()], "subjects": ["x"], "limits": DocumentLimits(), "stored": [], "projections": ()},
        **{"gone": Gone(shard, 1, 10, False, None), "ledger": None, "ledgers": ()},
    }


ANOTHER: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "activity.list_agent_days": lambda known: as_days(known),
    "activity.read_latencies": lambda known: as_days(known) | {"agent_id": "receiver-0"},
    "heads.range_of": lambda known: {"packets": known["wanted"], "places": [tuple(one) for one in known["places"]]},
    "packet_pages.page_of_packets": lambda known: {"after": None},
    "packet_pages.search_packets": lambda known: {"after": None},
    "packets.effects_of": lambda known: {"packets": known["wanted"]},
    "run_cards.page_of_cards": lambda known: {"wanted": RunsWanted(text="run-3")},
    "search.search_log": lambda known: {"wanted": Wanted("word1", run_id=RUN)},
    "session_pages.session_figures": lambda known: {"place": OnePlace(known["session_id"], known["shard"])},
}
"""Reading -> arguments that are not those of their names."""


def as_days(known: dict[str, Any]) -> dict[str, Any]:
    """Return times as days."""
    return {name: known[name].date() for name in ("since", "until")}


class OnePlace(NamedTuple):
    """Where a session stands."""

    session_id: str
    shard: int


def given_to(name: str, function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a reading: what it cannot do without, and the session where it takes filters."""
    given: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= {"session_id": known["session_id"]} if "session" in str(parameter.annotation) else {}
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            given[parameter.name] = known[parameter.name]
    return given | ANOTHER.get(name, dict)(known) if name in ANOTHER else given


def comparable(result: Any) -> Any:
    """Return a result without what has no order, and without the time of the reading."""
    match result:
        case CountedRanges():
            return Counter(result.packets), Counter(map(repr, result.hops)), result.single
        case Surroundings():
            return fields_of(replace(result, now=EARLY))
        case Session():
            return result.document, result.identities, sorted(result.open)
        case ApcError():
            return str(result)
        case dict():
            return {key: comparable(value) for key, value in result.items()}
        case list() | tuple():
            return [comparable(one) for one in result]
        case float():
            return round(result, 12)  # averages, in whatever order the rows came
        case asyncpg.Record():
            return {key: value for key, value in result.items() if not key.endswith("_age")}
    if is_dataclass(result):
        return fields_of(result)
    return result


def fields_of(result: Any) -> dict[str, Any]:
    """Return the fields of a result, as they are compared."""
    return {one.name: comparable(getattr(result, one.name)) for one in fields(result)}


COMPARED = {name: function for name, function in readings() if name not in NOT_COMPARED}


def test_every_reading_is_compared_or_named_here() -> None:
    """A new reading is compared as soon as each of its parameters has an argument here."""
    assert NOT_COMPARED.keys() <= {name for name, _ in readings()}
    assert len(COMPARED) > 120


@pytest.mark.parametrize(("session_id", "shard"), [("session-of-run-0", 0), ("second-of-run-0", 1)])
async def test_each_reading_is_the_same_over_two_databases(
    whole: asyncpg.Pool, both: asyncpg.Pool, session_id: str, shard: int
) -> None:
    known = await arguments(whole, session_id, shard)
    wrong, failed, empty = list[str](), set[str](), set[str]()
    for name, function in COMPARED.items():
        given = given_to(name, function, known)
        results = []
        for pool in (whole, both):
            try:
                results.append(comparable(await function(pool, **given)))
            except Exception as error:
                results.append(f"{error!r}"[:300])
                failed |= {name}
        wrong += [] if results[0] == results[1] else [f"{name}: {results[1]!r:.1500}\n  {results[0]!r:.1500}"]
        empty |= set() if results[0] else {name}
    assert not wrong, "\n".join(wrong)
    assert failed == set()
    assert len(empty) < 60, sorted(empty)  # of about 165: what this log has nothing of
