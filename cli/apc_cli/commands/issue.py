"""`apc issue`: what goes wrong, in groups, and who knows of it."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import asyncpg
import typer

from apc_bus.settings import BusSettings
from apc_cli.commands.group import Commands, Since, time_since, whole_run_id
from apc_cli.connections import find_door, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_rows, tell
from apc_cli.output.terminal import echo
from apc_contracts.judging.verdict import remedy_of
from apc_log.queries.troubles import (
    GROUPS,
    LONGEST_NOTE,
    Acknowledgement,
    Grouping,
    Issue,
    IssueKey,
    TroubleFilters,
    TroubleKind,
    list_issues,
    troubles_behind,
)

KINDS: tuple[TroubleKind, ...] = ("refusal", "failure", "dead_letter", "verification")
_LEAST = ("remedy", "note", "agents", "first")
_LAG = 2_000
"""Entries that the counts are behind without a word: a busy log is always some ahead."""
_DAY = timedelta(days=1)
_AHEAD = timedelta(minutes=1)
"""The clock of a gate may be ahead of this one."""

GroupBy = Annotated[str | None, typer.Option("--group-by", metavar="COLUMN", help=f"{', '.join(GROUPS)}.")]
KindName = Annotated[str, typer.Argument(metavar="KIND", help=f"{', '.join(KINDS)}.")]


async def issues_since(
    pool: asyncpg.Pool,
    since: datetime,
    by: Grouping,
    *,
    kinds: tuple[TroubleKind, ...] = (),
    agent_id: str | None = None,
    run_id: str | None = None,
    is_open: bool | None = None,
    limit: int = 100,
) -> list[Issue]:
    """Return the groups of what went wrong since a time; say on stderr when the log is not counted to its end."""
    if (behind := await troubles_behind(pool)) > _LAG:
        tell([f"{behind:,} entries of the log are not counted yet: the log writer counts them, `apc serve persister`"])
    filters = TroubleFilters(since, datetime.now(UTC) + _AHEAD, kinds, agent_id=agent_id, run_id=run_id)
    return await list_issues(pool, filters, by, is_open=is_open, limit=limit)


def print_issues(issues: list[Issue], by: Grouping, *, as_json: bool, empty: str) -> None:
    """Print groups, a row each."""
    rows = [_row(one, by) for one in issues]
    print_rows(
        rows, title=f"by {by}", as_json=as_json, empty=empty, least=_LEAST, document=list(map(_document, issues))
    )


def grouping_of(text: str) -> Grouping:
    """Return the grouping of this name. Raises InputUnusable."""
    found = next((one for one in GROUPS if one == text.lower()), None)
    if found is None:
        raise InputUnusable(f"--group-by {text!r}: use one of {', '.join(GROUPS)}")
    return found


def kind_of(text: str) -> TroubleKind:
    """Return the kind of this name. Raises InputUnusable."""
    found = next((one for one in KINDS if one == text.lower().replace("-", "_")), None)
    if found is None:
        raise InputUnusable(f"{text!r} is no kind of issue: use one of {', '.join(KINDS)}")
    return found


def _row(issue: Issue, by: Grouping) -> dict[str, Any]:
    key, known = issue.key, issue.acknowledged
    named = {column: getattr(key, column) or "" for column in GROUPS[by]}
    if by == "code":
        named["rule"] = key.rule or ""
    return {
        **named,
        "kind": key.kind,
        "count": issue.count,
        "last": issue.last_at,
        "state": "open" if issue.is_open else f"known to {known.by}" if known else "known",
        "agents": issue.agents,
        "first": issue.first_at,
        "note": known.note if known else "",
        "remedy": remedy_of(key.code or "") if key.kind == "refusal" else "",
    }


def _document(issue: Issue) -> dict[str, Any]:
    known = issue.acknowledged
    return {
        **issue.key.columns,
        "count": issue.count,
        "agents": issue.agents,
        "first_at": issue.first_at,
        "last_at": issue.last_at,
        "is_open": issue.is_open,
        "acknowledged": None if known is None else _known(known),
        "remedy": remedy_of(issue.key.code or "") if issue.key.kind == "refusal" else "",
    }


def _known(known: Acknowledgement) -> dict[str, Any]:
    return {"by": known.by, "note": known.note, "at": known.at, "seen_until": known.seen_until, "login": known.login}


async def acknowledge_as(pool: asyncpg.Pool, issue: IssueKey, note: str, person: str, seen_until: datetime) -> str:
    """Record that a person knows of an issue; return the id of the entry. Raises InputUnusable."""
    from apc_log.queries.troubles import acknowledge as record

    try:
        return await record(pool, issue, note, person, seen_until)
    except asyncpg.InsufficientPrivilegeError as error:
        raise InputUnusable(
            f"the database does not let this user acknowledge ({error}): an administrator of it grants it the role "
            "apc_settler"
        ) from error
    except asyncpg.InvalidParameterValueError as error:
        raise InputUnusable(str(error)) from error


# `apc issue`.

app = Commands(help="What goes wrong: refusals, failures, dead letters, failed verifications.")


@app.command("list")
async def list_(
    since: Since = None,
    group_by: GroupBy = None,
    kind: Annotated[list[str] | None, typer.Option(metavar="KIND", help=f"{', '.join(KINDS)}; repeatable.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Only of this agent.")] = None,
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Only of this run.", parser=whole_run_id)
    ] = None,
    is_open: Annotated[bool, typer.Option("--open", help="Only what nobody has acknowledged.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Print at most this many groups.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print what went wrong, in groups: open ones first, then the most frequent. Default: the last day, by code."""
    by, kinds = grouping_of(group_by or "code"), tuple(map(kind_of, kind or ()))
    begin = datetime.now(UTC) - _DAY if since is None else time_since(since)
    async with open_log() as pool:
        found = await issues_since(
            pool, begin, by, kinds=kinds, agent_id=agent, run_id=run_id, is_open=is_open or None, limit=limit
        )
    print_issues(found, by, as_json=as_json, empty="nothing went wrong")


@app.command()
async def acknowledge(
    kind: KindName,
    note: Annotated[str, typer.Option(help=f"What is being done about it; at most {LONGEST_NOTE} characters.")],
    code: Annotated[str | None, typer.Option(help="Of this code.")] = None,
    rule: Annotated[str | None, typer.Option(help="Of this rule; of a failure, its exception.")] = None,
    field: Annotated[str | None, typer.Option(help="At this place in the packet.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="ID", help="Of this agent.")] = None,
    person: Annotated[
        str | None, typer.Option("--as", metavar="PERSON", help="Who knows of it; default: the operator.")
    ] = None,
) -> None:
    """Record in the log that you know of an issue. What comes later opens it again."""
    from apc_client.operator import acting_operator

    issue = IssueKey(kind_of(kind), code, rule, field, agent)
    if len(issue.columns) == 1:
        raise InputUnusable("name the issue: --code, --rule, --field or --agent, as `apc issue list` shows it")
    if not note.strip():
        raise InputUnusable("--note: say what is being done about it")
    seen = datetime.now(UTC)
    door = find_door(BusSettings())
    await door.check()
    async with open_log() as pool:
        who = (await acting_operator(pool, door.user, person)).agent_id
        await acknowledge_as(pool, issue, note.strip(), who, seen)
    echo(f"{who} knows of {', '.join(f'{name} {value}' for name, value in issue.columns.items())}: it is in the log")
