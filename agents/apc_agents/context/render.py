"""What a frontend is shown of a context: pure data, and never a prompt.

Source: docs/reference/conformance/context-engineering.md, sections 1.2 and 3.4.
"""

from typing import Any, Final, Protocol

from apc_agents.context.window.linearity import ResourceClass
from apc_agents.context.window.placeholder import is_placeholder
from apc_agents.context.window.turns import Turn, TurnRole
from apc_agents.context.window.window import ContextWindow

IS_FOR_MODEL: Final = "is_for_model"
"""Metadata of a turn that says something of the prompt, such as which tools there are, to the model alone."""


class Chat(Protocol):
    """What a chat shows of a session; a ContextSession is one."""

    @property
    def window(self) -> ContextWindow: ...

    @property
    def pressure(self) -> float: ...

    @property
    def is_thinking(self) -> bool: ...

    @property
    def is_compressed(self) -> bool: ...

    @property
    def can_send(self) -> bool: ...

    @property
    def can_compress(self) -> bool: ...

    @property
    def can_clear(self) -> bool: ...


class ComponentRenderer:
    """Renders context state as React component props."""

    def render_chat(self, session: Chat) -> dict[str, Any]:
        """Return the props of a chat.

        `messages`, `pressure` in 0..1, `status` ready|thinking|compressed, and what can be done now: `canSend`,
        `canCompress`, `canClear`.
        """
        return {
            "messages": self.render_messages(session.window),
            "pressure": session.pressure,
            "status": self._compute_status(session),
            "canSend": session.can_send,
            "canCompress": session.can_compress,
            "canClear": session.can_clear,
        }

    def render_messages(self, window: ContextWindow) -> list[dict[str, Any]]:
        """Return the turns that may be seen: no system turns, nor what a model alone is told.

        A placeholder is seen too.
        """
        return [self._render_message(turn, window) for turn in window.all_turns() if _is_visible(turn)]

    def _render_message(self, turn: Turn, window: ContextWindow) -> dict[str, Any]:
        return {
            "id": turn.resource_id,
            "role": turn.role.value,
            "content": turn.content,
            "timestamp": turn.timestamp.isoformat(),
            "isPreserved": self._is_preserved(turn, window),
        }

    def _is_preserved(self, turn: Turn, window: ContextWindow) -> bool:
        return window.class_of(turn) is ResourceClass.PRESERVED

    def _compute_status(self, session: Chat) -> str:
        if session.is_thinking:
            return "thinking"
        return "compressed" if session.is_compressed else "ready"


def _is_visible(turn: Turn) -> bool:
    is_prompt = turn.role is TurnRole.SYSTEM or IS_FOR_MODEL in turn.metadata
    return is_placeholder(turn) or not is_prompt
