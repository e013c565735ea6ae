"""The team of `apc demo`: the incident room of examples/, whose fixer first acts without evidence.

`apc run` and `apc worker` load it as `apc_cli.commands.demo_room:team`.
"""

import sys
from contextlib import suppress
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from apc_agents import Agent, EmitRefused, HandlerContext, Team

PLACE = f"{__name__}:team"
"""The name of the team for `apc run`."""
_MODULE = "apc_incident_room"


def room_folder() -> Path:
    """Return the folder of the room: inside the package when installed from a wheel, else the checkout's examples/."""
    packaged = Path(str(files("apc_cli") / "incident_room"))
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "examples" / "incident-room"


def _load() -> Any:
    """Return the module of the room. It is loaded by its path: the caller's folder may have a `room.py`, too."""
    spec = spec_from_file_location(_MODULE, room_folder() / "room.py")
    assert spec is not None and spec.loader is not None
    loaded = sys.modules[_MODULE] = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


room = _load()
room.TAKES = 1.0  # the log has what was said before, when the process is killed
fixer = Agent(room.fixer.agent_id, role=room.fixer.role, swarm=room.fixer.swarm)


@fixer.on(room.Finding)
async def fix(finding: Any, ctx: HandlerContext) -> None:
    """Act at once when both findings are there, citing nothing; then as the room's fixer does."""
    earlier = set(ctx.state.get("findings", ())) - {str(ctx.packet.packet_id)}
    if earlier:
        await _act_without_evidence(finding, ctx)
    await room.fix(finding, ctx)


async def _act_without_evidence(finding: Any, ctx: HandlerContext) -> None:
    action = room.Action(service=finding.service, kind="rollback", risk="high")
    packet = await ctx.emit(action, to="scribe")
    with suppress(EmitRefused):
        await ctx.once("too-early", lambda: room.act(action), after=packet)


team = Team(
    room.team.name,
    agents=[fixer if agent is room.fixer else agent for agent in room.team.agents],
    entry=room.team.entry,
    input=room.team.input,
    contract=str(room.team.contract_file),
)
