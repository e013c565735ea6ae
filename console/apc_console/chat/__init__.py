"""`apc chat`: a conversation with an LLM agent at the terminal."""

from apc_console.chat.conversation_loop import ChatForm, run_chat

__all__ = ["ChatForm", "run_chat"]
