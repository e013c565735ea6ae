"""The frontend contract as JSON over HTTP: `apc serve chat` (docs/how-to/chat.md)."""

from apc_console.api.app import make_app
from apc_console.api.identity import Tokens
from apc_console.api.serve import ChatServiceForm, serve_chat

__all__ = ["ChatServiceForm", "Tokens", "make_app", "serve_chat"]
