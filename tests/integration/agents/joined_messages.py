"""What the agents of other frameworks are asked and answer, in tests that kill their processes."""

from typing import Any

from pydantic import BaseModel
from tests.support.account import note
from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Role, message, once
from apc_agents.clearance import Clearance
from apc_contracts.agent import SecurityLevel
from apc_minds.joined import Approvers

AS_RED: dict[str, Any] = {
    "role": ROLE,
    "swarm": AGENTS["red-1"][0],
    "completes": True,
    "approvers": Approvers(Role("release-manager")),
    "clearance": Clearance(agents={"librarian": SecurityLevel.USER}),
}


@message("refund-ask/1")
class Ask(BaseModel):
    text: str


@message("refund-end/1")
class End(BaseModel):
    text: str


@once
async def pay(order: str) -> str:
    """Pay at a service outside, a file here."""
    return f"receipt {note('payments', order)}"
