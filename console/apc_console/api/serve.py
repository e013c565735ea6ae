"""Run the frontend contract as a service."""

from dataclasses import dataclass

from apc_bus.settings import ConsoleSettings
from apc_console.api.app import make_app
from apc_console.api.identity import LOCAL_USER, Tokens
from apc_console.chat.agent import chat_agent
from apc_console.chat.conversation_store import open_memory
from apc_console.chat.tasks import running_tasks
from apc_console.errors import InputUnusable
from apc_web.http import is_loopback, listen_address, make_server, open_listeners


@dataclass(frozen=True, slots=True)
class ChatServiceForm:
    """The options that the operator gave."""

    agent: str | None
    listen: str


async def serve_chat(form: ChatServiceForm) -> None:
    """Serve until SIGTERM, then finish running requests.

    Raises:
        InputUnusable: listen is no HOST:PORT, another process listens there, or it is no loopback address while no
            tokens are set.
    """
    agent, tokens = chat_agent(form.agent), Tokens.read(ConsoleSettings().chat_tokens)
    host, port = listen_address(form.listen)
    if not tokens and not is_loopback(host):
        message = "others could reach it; set APC_CHAT_TOKENS, or listen on 127.0.0.1"
        raise InputUnusable(f"--listen {form.listen}: {message}")
    async with open_memory(LOCAL_USER) as memory, running_tasks(agent, memory) as tasks:
        app = make_app(agent, memory.of, tokens, tasks)
        with open_listeners(host, port) as listeners:
            await make_server(app, host, port).serve(listeners)
