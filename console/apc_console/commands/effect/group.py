"""`apc effect`: side effects that handlers run once, and an operator's decision about unknown ones."""

from typing import Annotated

import typer

from apc_console.output.output import AsJson

app = typer.Typer(help="Effects that handlers make once (ctx.once).", no_args_is_help=True)


@app.command("list")
def list_(
    agent_id: Annotated[str | None, typer.Option("--agent", help="Only effects of this agent.")] = None,
    packet_id: Annotated[str | None, typer.Option("--packet", help="Only effects for this packet.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="Only effects in this state: RUNNING, UNKNOWN, RESULT_LOST, MADE; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many effects.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print effects, newest first: packet, agent, key, state and since when."""
    from apc_console.commands.effect.effects_view import print_effects
    from apc_console.system.running import run_quietly

    run_quietly(print_effects(agent_id, packet_id, state, limit=limit, as_json=as_json))


@app.command()
def settle(
    packet_id: Annotated[str, typer.Argument(metavar="PACKET_ID", help="The packet that the effect was for.")],
    agent_id: Annotated[str, typer.Argument(metavar="AGENT_ID", help="The agent whose effect it is.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The handler's name for it, as `apc effect list` shows.")],
    result: Annotated[str | None, typer.Option(help="It has happened: the JSON that ctx.once returns for it.")] = None,
    not_made: Annotated[
        bool, typer.Option("--not-made", help="It has not happened: the next attempt runs it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Settle an effect whose outcome is unknown; then requeue its packet."""
    from apc_console.commands.effect.effects_view import settle_effect
    from apc_console.system.running import run_quietly

    run_quietly(settle_effect(packet_id, agent_id, key, result, is_not_made=not_made, as_json=as_json))
