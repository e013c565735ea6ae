"""A conversation at the terminal, or line by line through a pipe."""

from dataclasses import dataclass

from apc_agents.llm import Dialogue
from apc_console.chat.agent import chat_agent
from apc_console.chat.audit import audited_compressions
from apc_console.chat.commands import COMMANDS, parse_command
from apc_console.chat.conversation_store import open_memory
from apc_console.chat.screen import Screen, make_screen
from apc_console.chat.tasks import running_tasks
from apc_contracts.errors import ApcError
from apc_contracts.identity.ids import new_packet_id


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The options that the user gave. `session_id` None = a new conversation."""

    agent: str | None
    session_id: str | None
    user: str


async def run_chat(form: ChatForm) -> None:
    """Talk until /quit or the end of the input."""
    agent, screen = chat_agent(form.agent), make_screen()
    session_id = form.session_id or str(new_packet_id())
    async with (
        open_memory(form.user) as memory,
        running_tasks(agent, memory) as tasks,
        audited_compressions(agent, session_id, memory.pool) as on_compression,
    ):
        dialogue = Dialogue(agent, session_id, memory.store, tasks=tasks, on_compression=on_compression)
        screen.begin(agent.agent_id, session_id, await dialogue.begin(), is_kept=memory.pool is not None)
        while (line := await screen.read()) is not None:
            if line.strip() == COMMANDS["quit"].usage:
                break
            if line.strip():
                await _answer(dialogue, screen, line.strip())
        screen.end(session_id, is_kept=memory.pool is not None)


async def _answer(dialogue: Dialogue, screen: Screen, line: str) -> None:
    """Answer a line; refusals are shown, and the conversation goes on."""
    try:
        if line.startswith("/"):
            command, words = parse_command(line)
            screen.show_result(line, await command.run(dialogue, words), await dialogue.props())
            return
        with screen.thinking():
            output = await dialogue.say(line)
        screen.show_answer(line, output)
    except ApcError as refused:
        screen.show_refusal(line, refused)
