"""The agent of the web console's chat, and where its conversations are kept."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

from apc_bus.settings import LLMSettings
from apc_web.access import LOCAL_USER

if TYPE_CHECKING:
    from apc_web.chats import Chats


class ChatOptions(Protocol):
    """The options that matter for the chat."""

    @property
    def is_read_only(self) -> bool:
        """Whether there are no acts."""

    @property
    def agent(self) -> str | None:
        """The agent as module:agent."""


async def chats_of(stack: AsyncExitStack, form: ChatOptions) -> "Chats | str":
    """Return the conversations while `stack` is open, or one sentence that says why there are none.

    Raises ApcError: the agent that was named cannot be used.
    """
    if form.is_read_only:
        return "this server was started with --read-only"
    if form.agent is None and LLMSettings().model is None:
        return "this server has no agent to talk to: set APC_LLM_MODEL, or start it with --agent MODULE:AGENT"
    from apc_console.chat.agent import chat_agent
    from apc_console.chat.conversation_store import open_memory
    from apc_console.chat.tasks import running_tasks
    from apc_web.chats import Chats

    agent = chat_agent(form.agent)
    memory = await stack.enter_async_context(open_memory(LOCAL_USER))
    tasks = await stack.enter_async_context(running_tasks(agent, memory))
    chats = Chats(agent, memory.of, tasks, is_kept=memory.pool is not None)
    stack.push_async_callback(chats.close)
    return chats
