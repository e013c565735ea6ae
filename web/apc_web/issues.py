"""What goes wrong, in groups, and who knows of it: models, readings, the act and routes."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import Field, StringConstraints

from apc_contracts.judging.verdict import remedy_of
from apc_log.queries.troubles import (
    LONGEST_NOTE,
    Acknowledgement,
    Grouping,
    Issue,
    IssueKey,
    Trouble,
    TroubleFilters,
    TroubleKind,
    list_issues,
    list_troubles,
    troubles_behind,
)
from apc_web.access import AccountRole, caller, require
from apc_web.acts import ActOutcome, acts_of, require_operator
from apc_web.cursors import (
    LARGEST_SHARD,
    After,
    Code,
    Limit,
    OfAgent,
    OfRun,
    Since,
    Time,
    Until,
    microseconds,
    read_cursor,
    time_of,
    write_cursor,
)
from apc_web.errors import ApiError
from apc_web.models import NEXT, ApiModel, Shown
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Services, Serving

_REMEDIES = {
    "failure": "read the exception, mend the handler or its input, and start the agent again; then deliver the dead "
    "letters of it again",
    "dead_letter": "find out why the delivery failed, mend that, then deliver it again or discard it in the inbox",
    "verification": "look at the packet and its artifact: what it claims could not be confirmed",
}
"""What helps against the kinds that are no refusals."""
_RANGE = timedelta(days=1)
_LONGEST_RANGE = timedelta(days=3660)


class IssueAcknowledgement(ApiModel):
    """Somebody knows of an issue; an entry of the log."""

    by: Shown[str]
    note: str | None
    at: Shown[datetime]
    seen_until: Shown[datetime]
    """What came later has not been seen, and opens the issue again."""
    shard: Shown[int]
    seq: Shown[int]


class IssueGroup(ApiModel):
    """Troubles of one kind that have the same code, rule, agent or field."""

    kind: Shown[TroubleKind]
    code: Shown[str | None]
    """Null where the grouping is another."""
    rule: Shown[str | None]
    """Of a failure the exception, which viewers do not see."""
    field: str | None
    agent_id: Shown[str | None]
    count: Shown[int]
    agents: Shown[int]
    """How many agents have it."""
    first_at: Shown[datetime]
    last_at: Shown[datetime]
    bins: Shown[list[int]]
    """How many in each of the equal parts of the time."""
    is_open: Shown[bool]
    """False when it is acknowledged and nothing of it has come since."""
    acknowledged: Shown[IssueAcknowledgement | None]
    remedy: Shown[str | None]


class IssueList(ApiModel):
    """Groups, the open ones first, then the most frequent."""

    since: Shown[datetime]
    until: Shown[datetime]
    groups: Shown[list[IssueGroup]]
    is_complete: Shown[bool]
    """False when there are more groups than `limit`."""
    behind: Shown[int]
    """Entries of the log that are not counted yet."""


class IssueOccurrence(ApiModel):
    """One trouble."""

    shard: Shown[int]
    seq: Shown[int]
    kind: Shown[TroubleKind]
    at: Shown[datetime]
    code: Shown[str]
    rule: Shown[str]
    field: str | None
    agent_id: Shown[str]
    session_id: Shown[str | None]
    run_id: Shown[str | None]
    packet_id: Shown[UUID | None]
    """Of a failure the packet that was being handled."""
    packet_type: Shown[str | None]
    message: str | None
    remedy: Shown[str | None]


class OccurrencePage(ApiModel):
    """Troubles, newest first."""

    items: Shown[list[IssueOccurrence]]
    next: Shown[str | None] = NEXT


class AcknowledgeRequest(ApiModel):
    """Which issue somebody knows of. The columns are those of its group; null = any."""

    kind: TroubleKind
    code: str | None = Field(default=None, max_length=200)
    rule: str | None = Field(default=None, max_length=200)
    field: str | None = Field(default=None, max_length=1_000)
    agent_id: str | None = Field(default=None, max_length=256)
    note: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_NOTE)]
    """What is being done about it."""
    seen_until: Time
    """`last_at` of the group as it was on the screen: what came later is not acknowledged."""


Kinds = Annotated[list[TroubleKind] | None, Query(alias="kind", description="Only of these kinds; repeatable.")]
By = Annotated[Grouping, Query(description="What tells the groups apart, beside the kind.")]
Rule = Annotated[str | None, Query(max_length=200, description="Only of this rule; of a failure, its exception.")]
PacketPath = Annotated[str | None, Query(max_length=1_000, description="Only at this place in the packet.")]


async def issue_list(
    services: Services, filters: TroubleFilters, by: Grouping, *, is_open: bool | None, bins: int, limit: int
) -> IssueList:
    """Return the groups of troubles within a time."""
    found = await list_issues(services.pool, filters, by, is_open=is_open, bins=bins, limit=limit + 1)
    return IssueList(
        since=filters.since,
        until=filters.until,
        groups=[_group(one) for one in found[:limit]],
        is_complete=len(found) <= limit,
        behind=await troubles_behind(services.pool),
    )


async def occurrence_page(
    services: Services, filters: TroubleFilters, given: dict[str, object], after: str | None, limit: int
) -> OccurrencePage:
    """Return single troubles, newest first. Raises ApiError for a bad cursor."""
    last = read_cursor(after, "occurrences", given, int, int, int)
    place = None if last is None else (time_of(last[0]), max(min(last[1], LARGEST_SHARD), -1), last[2])
    rows = await list_troubles(services.pool, filters, after=place, limit=limit + 1)
    shown = rows[:limit]
    cursor = None
    if len(rows) > limit:
        end = shown[-1]
        cursor = write_cursor("occurrences", given, microseconds(end.at), end.shard, end.seq)
    return OccurrencePage(items=[_occurrence(one) for one in shown], next=cursor)


def filters_of(
    since: datetime | None,
    until: datetime | None,
    kinds: list[TroubleKind] | None,
    *,
    code: str | None = None,
    rule: str | None = None,
    field: str | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
) -> TroubleFilters:
    """Return the filters of a request as its caller may use them. Raises ApiError (403, 422).

    A viewer learns no text: neither the exceptions of failures nor the places in packets, and can look for none.
    """
    if field is not None:
        require(AccountRole.READER)
    end = until or datetime.now(UTC) + timedelta(minutes=1)  # a gate's clock may be ahead
    begin = since or end - _RANGE
    if not timedelta() < end - begin <= _LONGEST_RANGE:
        raise ApiError(422, "INVALID", "since: it must be before `until`, by at most 10 years", "since")
    if any(text is not None and "\0" in text for text in (rule, field)):
        raise ApiError(422, "INVALID", "rule, field: they hold no NUL", "rule")
    is_viewer = not caller().role.includes(AccountRole.READER)
    return TroubleFilters(begin, end, tuple(kinds or ()), code, rule, field, agent_id, run_id, hides_texts=is_viewer)


def _group(issue: Issue) -> IssueGroup:
    key = issue.key
    return IssueGroup.of(
        issue,
        key,
        bins=list(issue.bins),
        acknowledged=_acknowledged(issue.acknowledged),
        remedy=_remedy(key.kind, key.code),
    )


def _acknowledged(known: Acknowledgement | None) -> IssueAcknowledgement | None:
    return None if known is None else IssueAcknowledgement.of(known)


def _occurrence(trouble: Trouble) -> IssueOccurrence:
    return IssueOccurrence.of(trouble, remedy=_remedy(trouble.kind, trouble.code, trouble.refusal))


def _remedy(kind: TroubleKind, code: str | None, refusal: dict[str, object] | None = None) -> str | None:
    """Return what helps; of a team's rule its own words, which stand in the contract."""
    return _REMEDIES.get(kind) or (remedy_of(code, refusal=refusal) if code else "") or None


async def acknowledge(services: Services, request: AcknowledgeRequest) -> ActOutcome:
    """Record that the caller knows of an issue. Raises ApiError, InputUnusable, ServiceAway."""
    acts = acts_of(services)
    await require_operator(acts)
    issue = IssueKey(request.kind, request.code, request.rule, request.field, request.agent_id)
    if len(issue.columns) == 1:
        raise ApiError(422, "INVALID", "code: name a code, a rule, a field or an agent of the issue", "code")
    result = await acts.acknowledge(issue, request.note, request.seen_until, caller().person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


router = APIRouter(tags=["issues"], route_class=RoleRoute)


@router.get("/issues", response_model=IssueList)
@needs(AccountRole.VIEWER)
async def list_issue_groups(
    services: Serving,
    *,
    kinds: Kinds = None,
    by: By = "code",
    state: Annotated[Literal["open", "acknowledged"] | None, Query(description="Only in this state.")] = None,
    since: Since = None,
    until: Until = None,
    code: Code = None,
    rule: Rule = None,
    field: PacketPath = None,
    agent_id: OfAgent = None,
    run_id: OfRun = None,
    bins: Annotated[int, Query(ge=1, le=120, description="Parts of the time that are counted apart.")] = 24,
    limit: Limit = 100,
) -> IssueList:
    """Return what went wrong within a time, in groups: open ones first, then the most frequent."""
    if by == "field":
        require(AccountRole.READER)
    filters = filters_of(since, until, kinds, code=code, rule=rule, field=field, agent_id=agent_id, run_id=run_id)
    is_open = None if state is None else state == "open"
    return await issue_list(services, filters, by, is_open=is_open, bins=bins, limit=limit)


@router.get("/issues/occurrences", response_model=OccurrencePage)
@needs(AccountRole.VIEWER)
async def list_occurrences(
    services: Serving,
    *,
    kinds: Kinds = None,
    since: Since = None,
    until: Until = None,
    code: Code = None,
    rule: Rule = None,
    field: PacketPath = None,
    agent_id: OfAgent = None,
    run_id: OfRun = None,
    after: After = None,
    limit: Limit = 50,
) -> OccurrencePage:
    """Return single troubles, newest first."""
    filters = filters_of(since, until, kinds, code=code, rule=rule, field=field, agent_id=agent_id, run_id=run_id)
    given: dict[str, object] = {
        "since": since, "until": until, "kinds": sorted(kinds or ()), "code": code, "rule": rule, "field": field,
        "agent_id": agent_id, "run_id": run_id,
    }  # fmt: skip
    return await occurrence_page(services, filters, given, after, limit)


@router.post("/issues/acknowledge", response_model=ActOutcome)
@needs(AccountRole.OPERATOR)
async def acknowledge_issue(services: Serving, request: AcknowledgeRequest) -> ActOutcome:
    """Record in the log that you know of an issue; what comes later opens it again."""
    return await acknowledge(services, request)
