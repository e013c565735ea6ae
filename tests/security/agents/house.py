"""An LLM agent with dangerous tools, a model that obeys everything, and the ways in which a stranger reaches it."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from tests.security.agents.obedient import Obedient
from tests.support.waiting import until

from apc_agents import AgentTestClient
from apc_agents.clearance import Clearance, SenderRule
from apc_agents.task_port import ENDED
from apc_contracts import IdeaPayload, PacketType, Signal, SignalPayload
from apc_contracts.agent import SecurityLevel
from apc_contracts.packet import Actor
from apc_contracts.vocabulary import CONTROL_TYPES, Right
from apc_minds.actions import ToolRegistry
from apc_minds.llm import LLMAgent, LLMSettings

SWARM = "red"
STRANGER = Actor(agent_id="stranger-1", role="guest", swarm_id="outside")
COLLEAGUE = Actor(agent_id="colleague-1", role="builder", swarm_id=SWARM)
ANSWERS = {PacketType.IDEA, PacketType.CLAIM, PacketType.ERROR} | CONTROL_TYPES


@dataclass
class House:
    """The agent, what its tools hand on, and what they did."""

    mind: Obedient = field(default_factory=Obedient)
    page: str = "Nothing of interest."
    ran: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agent = LLMAgent(
            "clerk-1",
            role="clerk",
            swarm=SWARM,
            model=self.mind.model,
            tools=_tools(self),
            settings=LLMSettings(max_steps=20),
            clearance=Clearance(swarms={SWARM: SecurityLevel.USER}),
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self.client = await self._stack.enter_async_context(AgentTestClient(self.agent))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def hears(self, text: str, sender: Actor, session_id: str, **options: Any) -> None:
        """A QUERY of a sender reaches the agent; the model tries everything again."""
        self.mind.tried.clear()
        query = SignalPayload(signal=Signal.QUERY, reason=text)
        await self.client.send(query, sender=sender, session_id=session_id, **options)

    async def tasks_ended(self, session_id: str) -> None:
        """Wait until no task of the session goes on."""

        async def have_ended() -> bool:
            return all(task.status in ENDED for task in await self.client.tasks.list(session_id=session_id))

        await until(have_ended)

    def foreign_packets(self) -> list[str]:
        """Return what the agent has sent that is no answer to the one who asked."""
        return [
            f"{one.packet_type} to {recipient.agent_id}"
            for one in self.client.emitted
            for recipient in one.recipients
            if one.packet_type not in ANSWERS or recipient.agent_id not in (STRANGER.agent_id, COLLEAGUE.agent_id)
            if recipient.agent_id != self.agent.agent_id
        ]


def idea(**fields: Any) -> IdeaPayload:
    """Return an IDEA with these fields."""
    given: dict[str, Any] = {
        "method_id": "m-1",
        "intent": "Count the boxes.",
        "assumptions": [],
        "required_capabilities": [],
        "expected_impact": {"quality_gain": 0.1, "cost_change": 0.0, "risk_change": 0.0},
        "failure_modes": [],
    }
    return IdeaPayload.model_validate({**given, **fields}, strict=False)


def new_session() -> str:
    """Return a separate session for each text."""
    return f"s-{uuid4()}"


def _tools(house: House) -> ToolRegistry:
    tools = ToolRegistry()

    @tools.tool(security_level="user")
    async def transfer_money(note: Any = None) -> str:
        """Transfers money."""
        house.ran.append("transfer_money")
        return "transferred"

    @tools.tool(security_level="admin")
    async def wipe(note: Any = None) -> str:
        """Wipes everything."""
        house.ran.append("wipe")
        return "wiped"

    @tools.tool(security_level="public", senders=SenderRule(rights=(Right.DECIDE,)))
    async def deploy(note: Any = None) -> str:
        """Deploys."""
        house.ran.append("deploy")
        return "deployed"

    @tools.tool(security_level="public")
    async def look_up() -> int:
        """Looks up a number that everybody may know."""
        house.ran.append("look_up")
        return 42

    @tools.tool(security_level="user", result_level="public")
    async def fetch_page() -> str:
        """Gives a page of the web."""
        house.ran.append("fetch_page")
        return house.page

    @tools.tool(security_level="user", result_level="public")
    async def read_artifact() -> dict[str, str]:
        """Gives the text of an artifact."""
        house.ran.append("read_artifact")
        return {"text": house.page}

    @tools.tool(security_level="user", result_level="public")
    async def break_down() -> str:
        """Fails with a text of the other side."""
        house.ran.append("break_down")
        raise RuntimeError(house.page)

    @tools.tool(security_level="user", result_level="public")
    async def plan() -> str:
        """Plans as a task."""
        house.ran.append("plan")
        return house.page

    return tools
