"""Commands that run a team, the whole system, an agent, a conversation or the web console.

What each needs is imported when it runs: `apc worker` starts without the libraries of the server.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from apc_cli.commands.group import whole_run_id
from apc_cli.output.output import WithUi
from apc_cli.output.terminal import echo
from apc_cli.system.running import run as run_to_end
from apc_cli.system.running import run_service

ListenOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="The address to listen on; beyond loopback only with accounts.")
]
ReadOnlyOption = Annotated[bool, typer.Option("--read-only", help="Offer no acts, no matter who asks.")]
RunIdOption = Annotated[str | None, typer.Option(help="The run that the session belongs to; by default a new one.")]
TagOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A tag by which people find the run, as customer=7; repeatable."),
]
AgentOption = Annotated[
    str | None,
    typer.Option("--agent", metavar="MODULE:AGENT", help="An LLMAgent; default one with the model of APC_LLM_MODEL."),
]


def tags_of(given: Sequence[str]) -> dict[str, str]:
    """Return the tags of a run by key. Raises BadParameter for what is not KEY=VALUE, or a key given twice."""
    tags = dict[str, str]()
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals and value) or key in tags:
            raise typer.BadParameter(f"{text!r}: write KEY=VALUE, each key once", param_hint="--tag")
        tags[key] = value
    return tags


def people_of(given: Sequence[str]) -> dict[str, str]:
    """Return the role of each person by name. Raises BadParameter for what is not NAME:ROLE, or a name given twice."""
    people = dict[str, str]()
    for text in given:
        name, colon, role = text.partition(":")
        if not (name and colon and role) or name in people:
            raise typer.BadParameter(f"{text!r}: write NAME:ROLE, each name once", param_hint="--person")
        people[name] = role
    return people


def run(
    team: Annotated[str, typer.Argument(metavar="MODULE:TEAM", help="Where the team is, as package.module:name.")],
    file: Annotated[
        Path, typer.Option("--input", metavar="FILE", help="The input as JSON; - reads the standard input.")
    ],
    key: Annotated[
        str | None, typer.Option(help="The same key and input lead to the same session; default a new one.")
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:ROLE",
            help="Somebody who answers questions to this role here and, as NAME:operator, may act on sessions; "
            "repeatable.",
        ),
    ] = None,
    run_id: RunIdOption = None,
    tag: TagOption = None,
    ui: WithUi = False,
) -> None:
    """Run a team on one input and print its result as JSON: in this process, or over RabbitMQ with APC_AMQP_URL.

    Exits with 3 when the session halted without a result.
    """
    from apc_cli.system.teams import run_team
    from apc_client.run_names import RunNames

    def show(outcome: dict[str, Any]) -> None:
        echo(orjson.dumps(outcome, option=orjson.OPT_INDENT_2).decode(), flush=True)

    names = RunNames.of(run_id, tags_of(tag or ()))
    run_to_end(run_team(team, file, show, key=key, names=names, people=people_of(person or ()), ui=ui), "run")


def up(
    agent: Annotated[
        list[str] | None, typer.Option(metavar="MODULE:AGENT", help="An agent or a team to run, too; may be repeated.")
    ] = None,
    chaos: Annotated[
        Path | None,
        typer.Option(
            metavar="PROFILE", help="Inject the faults of this TOML file into the agents' messages; prints a scorecard."
        ),
    ] = None,
    person: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:ROLE",
            help="Somebody who may answer questions to this role and, as NAME:operator, act on sessions; repeatable. "
            "Without a broker only.",
        ),
    ] = None,
    a2a: Annotated[
        str | None,
        typer.Option(metavar="MODULE:TEAM", help="Run this team, too, and serve it over A2A at APC_A2A_LISTEN."),
    ] = None,
    ui: WithUi = False,
) -> None:
    """Run everything until SIGTERM: in this process by default, with an embedded PostgreSQL and no broker.

    With APC_AMQP_URL and APC_DATABASE_URL set, run one process per service and agent, restarted when it dies.
    """
    from apc_cli.system.up import run_everything

    run_service("system", run_everything(agent or [], chaos, people_of(person or ()), ui=ui, a2a=a2a))


def worker(
    agent: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="Where the agent is, as package.module:name.")],
) -> None:
    """Run an agent against the broker of APC_AMQP_URL until SIGTERM, which drains it."""
    from apc_cli.system.worker import run_agent

    run_service(f"worker of {agent}", run_agent(agent))


async def chat(
    agent: AgentOption = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="The session to continue or begin.")
    ] = None,
    user: Annotated[str, typer.Option(help="The user of the conversation; others do not see it.")] = "local",
) -> None:
    """Talk to an agent; /help lists the commands.

    The conversation is kept in APC_DATABASE_URL or the embedded database, if there is one. Through a pipe each line is
    a message, and each answer a line of JSON.
    """
    from apc_cli.chat import ChatForm, run_chat

    await run_chat(ChatForm(agent, session, user))


async def ui(
    run_id: Annotated[
        str | None, typer.Option("--run", metavar="RUN_ID", help="The run to open first.", parser=whole_run_id)
    ] = None,
    listen: ListenOption = "127.0.0.1:8083",
    read_only: ReadOnlyOption = False,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="MODULE:AGENT", help="The agent to chat with; default the model of APC_LLM_MODEL."
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    new_token: Annotated[
        bool, typer.Option("--new-token", help="Replace the token of the data folder and exit: old links end.")
    ] = False,
) -> None:
    """Open the web console for the log of the data folder, or of APC_DATABASE_URL; it never migrates."""
    from apc_cli.commands.ui import WebForm, renew_links, serve_web

    if new_token:
        renew_links()
        return
    await serve_web(WebForm(run_id, listen, read_only, opens_browser=browser, agent=agent))
