"""Search over packets and runs, for readers: what is found tells what bodies hold."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from apc_log.queries.run_cards import RunsWanted, page_of_cards
from apc_log.queries.search import MOST_UNREAD, BeforeHit, Wanted, read_lag, search_log
from apc_web.access import AccountRole
from apc_web.contents import said_at, spoken
from apc_web.cursors import (
    NAME,
    After,
    Code,
    Limit,
    OfAgent,
    OfRun,
    SearchText,
    Since,
    Until,
    microseconds,
    read_cursor,
    time_of,
    write_cursor,
)
from apc_web.models import NEXT, ApiModel
from apc_web.packets import PacketSummary
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Reading, Serving
from apc_web.runs import RunSummary, summaries_of

_SHOWN_RUNS = 10


class SearchPage(ApiModel):
    """What was found: packets by the time of their verdict, the newest first; runs, those started last first."""

    packets: list[PacketSummary]
    runs: list[RunSummary]
    """Of the first page alone, at most 10."""
    next: str | None = NEXT
    unread: int
    """Packets of that time whose content is not searched: encrypted, or no JSON. They are found by names and ids."""
    is_unread_whole: bool
    """False: there are more of them than `unread`."""
    archived_until: datetime | None
    """Packets up to this time are in the archive, and are not searched; null where all of that time are."""
    behind: int
    """Entries of the log that the search does not know yet."""


async def search_page(reading: Reading, wanted: Wanted, after: str | None, limit: int) -> SearchPage:
    """Return one page. Raises ApiError for a bad cursor, SearchUnusable where there is nothing to search for."""
    filters = asdict(wanted)
    last = read_cursor(after, "search", filters, int, int, int)
    before = None if last is None else BeforeHit(time_of(last[0]), min(last[1], 2**31 - 1), last[2])
    found = await search_log(reading.pool, wanted, before=before, limit=limit)
    said = await said_at(reading.pool, reading.schemas, found.packets)
    cursor = None
    if found.before is not None:
        cursor = write_cursor("search", filters, microseconds(found.before.at), found.before.shard, found.before.seq)
    return SearchPage(
        packets=spoken(PacketSummary, found.packets, said),
        runs=[] if before is not None else await _runs(reading, wanted),
        next=cursor,
        unread=min(found.unread, MOST_UNREAD),
        is_unread_whole=found.unread <= MOST_UNREAD,
        archived_until=found.archived_until,
        behind=await read_lag(reading.pool, "packet_search", "run_cards"),
    )


async def _runs(reading: Reading, wanted: Wanted) -> list[RunSummary]:
    """Return the runs that the text is about; none where packets alone are asked for."""
    if wanted.text is None or wanted.schema or wanted.code or wanted.run_id:
        return []
    runs = RunsWanted(wanted.text, agent=wanted.agent, since=wanted.since, until=wanted.until)
    return await summaries_of(
        reading.pool, await page_of_cards(reading.pool, runs, sorted_by="started", limit=_SHOWN_RUNS)
    )


router = APIRouter(tags=["search"], route_class=RoleRoute)


@router.get("/search", response_model=SearchPage)
@needs(AccountRole.READER)
async def search(
    services: Serving,
    *,
    text: SearchText = None,
    run_id: OfRun = None,
    agent: OfAgent = None,
    schema: Annotated[str | None, Query(pattern=NAME, description="Only data of this schema, as NAME/VERSION.")] = None,
    code: Code = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 50,
) -> SearchPage:
    """Find packets and runs by words of their content, ids or ends of ids, agents, schemas and refusal codes."""
    return await search_page(services, Wanted(text, run_id, agent, schema, code, since, until), after, limit)
