"""`apc demo`: the incident room, from an alert to its verified log, with a kill in between; `apc demo research`."""

import asyncio
import os
import shlex
import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import asyncpg
import typer

from apc_bus.concurrency import cancelled
from apc_cli.commands.demo_room import room
from apc_cli.commands.demo_stage import (
    Answer,
    Killed,
    Place,
    Stage,
    in_one_process,
    leave_settings,
    open_database,
    over_rabbitmq,
    run_command,
)
from apc_cli.commands.demo_story import Story, kind_of
from apc_cli.errors import LogDiffers
from apc_cli.output.files import StandardInput
from apc_cli.output.output import program
from apc_cli.output.terminal import forget_typed
from apc_cli.system.running import run_quietly
from apc_cli.system.up import PORT, console_beside
from apc_client.session import ClientSession, SessionEvent
from apc_contracts.payloads.by_type import DecisionPayload
from apc_contracts.text import numbered
from apc_log.queries.packets import session_effects

AUTOPILOT: Final = "demo-autopilot"
"""Who approves where nobody at a terminal does: the log must not claim a person."""
YOU: Final = "you"
"""Who approves at the terminal."""
PATIENCE_SECONDS: Final = 30
RESEARCH: Final = ("automl", "run", "--budget-seconds", "14")
_YES: Final = frozenset({"", "y", "yes"})
_DISPLAYS: Final = ("DISPLAY", "WAYLAND_DISPLAY")


class Scene(StrEnum):
    """What there is to see."""

    ROOM = "room"
    RESEARCH = "research"


@dataclass(frozen=True, slots=True)
class DemoForm:
    """What the command line says."""

    is_over_rabbit: bool
    wants_page: bool
    patience: timedelta
    """How long the terminal is waited for."""


def demo(
    context: typer.Context,
    scene: Annotated[
        Scene,
        typer.Argument(
            help="room = an incident room; research = three swarms search for a model of a sample table "
            "(`apc automl run`, extra automl)."
        ),
    ] = Scene.ROOM,
    rabbitmq: Annotated[
        bool,
        typer.Option(
            "--rabbitmq", help="With a process for each agent, over the broker of APC_AMQP_URL or of this machine."
        ),
    ] = False,
    page: Annotated[
        bool, typer.Option(help="Open the run in a browser, where there is a terminal and a browser.")
    ] = True,
    patience: Annotated[
        int, typer.Option(min=1, max=3600, help="Seconds after which demo-autopilot answers for you.")
    ] = PATIENCE_SECONDS,
) -> None:
    """Watch an incident room for 20 seconds: a refusal, an approval, a kill -9 without a doubled effect, a proof.

    It needs no broker, no Docker and no model. Where nobody answers at a terminal, the registration demo-autopilot
    approves. Of your settings it uses only APC_DATA_DIR, and with --rabbitmq APC_AMQP_URL.
    """
    if scene is Scene.RESEARCH:
        if rabbitmq:
            raise typer.BadParameter("it goes with the incident room alone", param_hint="--rabbitmq")
        whole: Any = context.find_root().command
        raise typer.Exit(whole.main([*RESEARCH], prog_name="apc", standalone_mode=False) or 0)
    run_quietly(_play(DemoForm(rabbitmq, page, timedelta(seconds=patience))))


async def _play(form: DemoForm) -> None:
    given, command, caller = os.environ.get("APC_DATA_DIR"), program(), Path.cwd()
    place, story = leave_settings(over_rabbit=form.is_over_rabbit), Story()
    command = f"{_data_dir(place, given, caller)}{command}"
    plays = over_rabbitmq if form.is_over_rabbit else in_one_process
    people = (AUTOPILOT, YOU) if _has_terminal() else (AUTOPILOT,)
    news = News()
    alert = room.Alert(service="shop", symptom="5xx after a deploy")
    story.begin(place.data, over_rabbit=form.is_over_rabbit)
    async with console_beside() as console:
        async with open_database(place) as pool:
            async with plays(pool, place, alert, people, news.put_nowait) as stage:
                postmortem = await _follow(pool, stage, news, story, form.patience)
            story.show_postmortem(postmortem)
            await _check(pool, place, stage.session_id, story, command)
        if form.wants_page and _has_terminal() and _has_browser():
            story.head("The web console opens on this run, until Ctrl-C.")
            await console.open("--run", stage.session_id)
            await console.stay()
        else:
            story.show_page(
                f"{command} ui --run {stage.session_id}", f"http://127.0.0.1:{PORT}/runs/{stage.session_id}"
            )


News = asyncio.Queue[SessionEvent | Killed | None]


async def _follow(pool: asyncpg.Pool, stage: Stage, news: News, story: Story, patience: timedelta) -> list[str]:
    """Tell the session as the log gets it, answer its question, and return the postmortem."""
    reading = asyncio.create_task(_read(pool, stage.session_id, news))
    postmortem: list[str] = []
    try:
        while (one := await news.get()) is not None:
            if isinstance(one, Killed):
                story.show_kill(one)
                continue
            story.show(one)
            kind = kind_of(one)
            if kind == "question":
                await stage.answer(one.packet_id, await _answer(story, patience))
            if kind == "report":
                postmortem = _timeline(one)
        await reading
    finally:
        await cancelled(reading)
    return postmortem


async def _read(pool: asyncpg.Pool, session_id: str, news: News) -> None:
    try:
        async for event in ClientSession(pool, session_id).events():
            news.put_nowait(event)
    finally:
        news.put_nowait(None)


def _timeline(event: SessionEvent) -> list[str]:
    payload = None if event.packet is None else event.packet.payload_as(DecisionPayload)
    content: Mapping[str, Any] = {} if payload is None or payload.result is None else payload.result.content
    return [str(line) for line in content.get("timeline", ())]


# The approval: of the person at the terminal, within a time limit, else of the registration AUTOPILOT.


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


async def _answer(story: Story, patience: timedelta) -> Answer:
    if not _has_terminal():
        story.say(f"There is no terminal to ask at, so {AUTOPILOT} approves.")
        return Answer(True, AUTOPILOT, "no terminal")
    seconds = f"{patience.total_seconds():g} s"
    forget_typed()
    story.say(f"You are the lead. Approve? Enter or y = yes, n = no; after {seconds} {AUTOPILOT} approves.", "bold")
    try:
        line = await asyncio.wait_for(StandardInput().read_line(), patience.total_seconds())
    except TimeoutError:
        line = None
    if line is None:
        story.say(f"Nobody has answered, so {AUTOPILOT} approves.")
        return Answer(True, AUTOPILOT, f"nobody answered at the terminal within {seconds}")
    return Answer(line.strip().lower() in _YES, YOU, None)


# What the run has left: the effect, the log, the page.


async def _check(pool: asyncpg.Pool, place: Place, session_id: str, story: Story, command: str) -> None:
    """Show that nothing was doubled, and that the log is whole. Raises LogDiffers when it is not."""
    story.head("Nothing is doubled, nothing is lost, and anybody can check it:")
    effects = [effect.words for effect in await session_effects(pool, session_id)]
    story.show_done(place.done, effects)
    replay = ("packet", "replay", "--run-id", session_id, "--verify")
    (code, reports), (replayed, run) = await asyncio.gather(run_command("log", "verify"), run_command(*replay))
    if code or replayed or not isinstance(reports, list) or not isinstance(run, dict):
        raise LogDiffers(f"the log is not as it was recorded: `apc log verify` in {place.folder} says where")
    entries = sum(report.get("entries", 0) for report in reports)
    story.show_checks(
        [
            (
                f"{command} log verify",
                f"{numbered(entries, 'entry', 'entries')}, hashed into a signed tree: all as written",
            ),
            (
                " ".join((command, *replay)),
                f"{numbered(run['packets'], 'verdict')} of the gate recomputed: all the same",
            ),
        ]
    )
    story.say_time()


def _data_dir(place: Place, given: str | None, caller: Path) -> str:
    """Return the assignment with which commands in the caller's folder find the log; none where they find it anyway."""
    is_default = given is None and place.data == caller / ".apc"
    return "" if is_default else f"APC_DATA_DIR={shlex.quote(str(place.data))} "


def _has_browser() -> bool:
    """Return whether a browser with windows can be opened; one in the terminal would take it."""
    if sys.platform not in ("darwin", "win32") and not any(os.environ.get(name) for name in _DISPLAYS):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
