"""An agent with a mind, run as a process by test_llm_worker: its model is the service that the environment names."""

from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_contracts import PacketType
from apc_minds.context import SessionConfig
from apc_minds.llm import LLMAgent

CONFIG = SessionConfig(max_tokens=1_000)
agent = LLMAgent(
    "red-1", role=ROLE, swarm=AGENTS["red-1"][0], handles=(PacketType.IDEA,), answers_queries=False, config=CONFIG
)
stranger = LLMAgent("stranger-1", role=ROLE, swarm="red", config=CONFIG)
"""Nobody has registered it."""
