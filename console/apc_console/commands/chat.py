"""`apc chat`: talk to an agent."""

from typing import Annotated

import typer

AgentOption = Annotated[
    str | None,
    typer.Option("--agent", metavar="MODULE:AGENT", help="An LLMAgent; default one with the model of APC_LLM_MODEL."),
]


def chat(
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
    from apc_console.chat import ChatForm, run_chat
    from apc_console.system.running import run_quietly

    run_quietly(run_chat(ChatForm(agent, session, user)))
