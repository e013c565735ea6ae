"""What a session shows: its state, its props for a frontend, and its prompts for a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from apc_agents.context.conversation import Conversation
from apc_agents.context.errors import ContextPressureError
from apc_agents.context.polynomial import VALID_DIRECTIONS, ContextState
from apc_agents.context.prompt_assembly import PromptBuilder
from apc_agents.context.render import ComponentRenderer
from apc_agents.context.window.gaps import with_gaps_told
from apc_agents.context.window.threshold import AdaptiveThreshold
from apc_agents.context.window.turns import Turn
from apc_agents.context.window.window import ContextWindow


class ReadableSession:
    """The readable half of a session; nothing here changes it."""

    def __init__(self, conversation: Conversation, prompts: PromptBuilder) -> None:
        self._conversation = conversation
        self._prompts = prompts
        self._renderer = ComponentRenderer()

    @property
    def window(self) -> ContextWindow:
        """The window as it is now; what is done to it does not reach the session."""
        return self._conversation.window.copy()

    @property
    def state(self) -> ContextState:
        """Where it stands in the polynomial."""
        return self._conversation.state

    @property
    def pressure(self) -> float:
        """Tokens used / max_tokens, 0..1."""
        return self._conversation.window.pressure

    @property
    def threshold(self) -> AdaptiveThreshold:
        """When it is compressed."""
        return self._conversation.threshold

    @property
    def compressions(self) -> int:
        """How often it was compressed."""
        return self._conversation.compressions

    @property
    def message_limit(self) -> int:
        """Tokens of the longest turn that is taken."""
        return self._conversation.message_limit

    @property
    def can_send(self) -> bool:
        """Whether the user may speak: not while PRESSURED."""
        return self._takes("user_turn")

    @property
    def can_compress(self) -> bool:
        """Whether it can be compressed: not while EMPTY."""
        return self._takes("compress")

    @property
    def can_clear(self) -> bool:
        """Whether there is something to clear: not while EMPTY."""
        return self._takes("clear")

    def _takes(self, kind: str) -> bool:
        return kind in VALID_DIRECTIONS[self.state]

    @property
    def is_compressed(self) -> bool:
        """Whether the last thing that happened to it was a compression."""
        return self.state is ContextState.COMPRESSED

    @property
    def is_thinking(self) -> bool:
        """Whether what the user, or a tool, said last waits for an answer."""
        return self._conversation.awaits_answer

    def render(self) -> dict[str, Any]:
        """Return the props of a chat component; never a prompt."""
        return self._renderer.render_chat(self)

    def build_prompt(
        self,
        agent_type: str,
        eigenvectors: Mapping[str, float] | None = None,
        constraints: Sequence[str] = (),
        **details: str,
    ) -> str:
        """Return the system prompt, and the conversation below it as `role: content`.

        For a model, never for a frontend.

        Raises:
            PromptInvalid: as PromptBuilder.build_system_prompt.
            ContextPressureError: the window is above max_tokens: compress first.
        """
        system = self.build_system_prompt(agent_type, eigenvectors, constraints, **details)
        turns = [f"{turn.role.value}: {turn.content}" for turn in self.turns_for_model()]
        return "\n\n".join([system, *turns])

    def build_system_prompt(
        self,
        agent_type: str,
        eigenvectors: Mapping[str, float] | None = None,
        constraints: Sequence[str] = (),
        **details: str,
    ) -> str:
        """Return the system prompt alone. Raises PromptInvalid."""
        return self._prompts.build_system_prompt(agent_type, eigenvectors or {}, constraints, **details)

    def turns_for_model(self) -> list[Turn]:
        """Return what a model may be given, never above max_tokens; notes tell where turns were dropped.

        Raises:
            ContextPressureError: the window is above max_tokens: compress first.
        """
        window = self._conversation.window
        if window.overflow_tokens:
            raise ContextPressureError("prompt")
        return with_gaps_told(window)
