"""The states of a context, the inputs that each one takes, and what they lead to.

Source: docs/reference/conformance/context-engineering.md, sections 1.1 and 3.2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Generic, Protocol, TypeVar

from apc_minds.context.compression import compress, is_placeholder
from apc_minds.context.turns import ContextPressureError, InvalidTransition, ResourceClass, Turn, TurnInvalid, TurnRole
from apc_minds.context.window import DEFAULT_THRESHOLD, ContextWindow

# What a frontend is shown of a context: pure data, and never a prompt.
#
# Source: docs/reference/conformance/context-engineering.md, sections 1.2 and 3.4.

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


State = TypeVar("State")
Input = TypeVar("Input")
Output = TypeVar("Output")


class ContextState(Enum):
    """Positions in the context polynomial."""

    EMPTY = auto()
    """No turns yet."""
    ACCUMULATING = auto()
    """Collecting turns, the pressure is at most the threshold."""
    PRESSURED = auto()
    """The pressure is above the threshold: compress or clear."""
    COMPRESSED = auto()
    """Recently compressed, cooling down."""


@dataclass(frozen=True, slots=True)
class ContextInput:
    """Direction (valid input) for context polynomial. `payload`: a turn's content, or a compression's target."""

    kind: str
    payload: Any = None

    @classmethod
    def user_turn(cls, content: str) -> "ContextInput":
        """Return what the user says."""
        return cls("user_turn", content)

    @classmethod
    def assistant_turn(cls, content: str) -> "ContextInput":
        """Return what the agent answers."""
        return cls("assistant_turn", content)

    @classmethod
    def tool_turn(cls, content: str) -> "ContextInput":
        """Return what a tool returned; not in the Context Engineering Protocol."""
        return cls("tool_turn", content)

    @classmethod
    def system(cls, content: str) -> "ContextInput":
        """Return what the system says."""
        return cls("system", content)

    @classmethod
    def compress(cls, target: float = DEFAULT_THRESHOLD) -> "ContextInput":
        """Return a compression to a target pressure in 0..1."""
        return cls("compress", target)

    @classmethod
    def clear(cls) -> "ContextInput":
        """Return the end of all turns."""
        return cls("clear")


@dataclass(frozen=True, slots=True)
class ContextOutput:
    """Output from context transition."""

    messages: tuple[dict[str, Any], ...]
    """As ComponentRenderer shows them."""
    pressure: float
    state: ContextState
    compressed: bool = False


@dataclass(frozen=True)
class PolyAgent(Generic[State, Input, Output]):
    """A polynomial functor: positions, the directions of each, and what a direction leads to."""

    positions: frozenset[State]
    directions: Callable[[State], frozenset[str]]
    transition: Callable[..., tuple[State, Output]]


SEED_DIRECTIONS: Final[Mapping[ContextState, frozenset[str]]] = {
    ContextState.EMPTY: frozenset({"user_turn", "system"}),
    ContextState.ACCUMULATING: frozenset({"user_turn", "assistant_turn", "compress", "clear"}),
    ContextState.PRESSURED: frozenset({"compress", "clear"}),
    ContextState.COMPRESSED: frozenset({"user_turn", "assistant_turn", "clear"}),
}
"""The transitions of the Context Engineering Protocol, section 3.2."""
ADDED_DIRECTIONS: Final[Mapping[ContextState, frozenset[str]]] = {
    ContextState.ACCUMULATING: frozenset({"tool_turn", "system"}),
    ContextState.COMPRESSED: frozenset({"tool_turn", "system", "compress"}),
}
"""What a tool gave goes where an answer goes, and the system may speak in between: ours. A compression after a
compression, to a lower target: the transition of the protocol takes it in COMPRESSED, where its table leaves it out."""
VALID_DIRECTIONS: Final[Mapping[ContextState, frozenset[str]]] = {
    state: seed | ADDED_DIRECTIONS.get(state, frozenset()) for state, seed in SEED_DIRECTIONS.items()
}
ROLE_OF_KIND: Final = {
    "user_turn": TurnRole.USER,
    "assistant_turn": TurnRole.ASSISTANT,
    "tool_turn": TurnRole.TOOL,
    "system": TurnRole.SYSTEM,
}
KIND_OF_ROLE: Final = {role: kind for kind, role in ROLE_OF_KIND.items()}


def check_direction(state: ContextState, kind: str) -> None:
    """Check that a state accepts an input.

    Raises:
        ContextPressureError: it does not, and the state is PRESSURED.
        InvalidTransition: it does not.
    """
    if kind in VALID_DIRECTIONS[state]:
        return
    if state is ContextState.PRESSURED and kind in ROLE_OF_KIND:
        raise ContextPressureError(kind)
    raise InvalidTransition(state.name, kind, sorted(VALID_DIRECTIONS[state]))


def state_of(window: ContextWindow, threshold: float) -> ContextState:
    """Return the state of a window that holds turns and was not just compressed."""
    return ContextState.PRESSURED if window.pressure > threshold else ContextState.ACCUMULATING


def context_transition(
    state: ContextState, input: ContextInput, window: ContextWindow, threshold: float = DEFAULT_THRESHOLD
) -> tuple[ContextState, ContextOutput]:
    """Return the polynomial transition function: (State, Input) → (NewState, Output). The window takes the input in.

    A compression here uses the extractive summarizer; ContextSession has the one that may ask a model, and keeps
    what is folded.

    Raises:
        ContextPressureError, InvalidTransition: the state does not list the input; the window stays.
        TurnInvalid, ArgumentInvalid: its payload cannot be used; the window stays.
    """
    check_direction(state, input.kind)
    if input.kind == "compress":
        window.become(compress(window, input.payload).window)
        reached = ContextState.COMPRESSED
    elif input.kind == "clear":
        if input.payload is not None:
            raise TurnInvalid("payload", "clear has none: leave it out")
        window.become(window.cleared())
        reached = ContextState.EMPTY
    else:
        window.append(ROLE_OF_KIND[input.kind], input.payload)
        reached = state_of(window, threshold)
    return reached, ContextOutput(
        messages=tuple(ComponentRenderer().render_messages(window)),
        pressure=window.pressure,
        state=reached,
        compressed=input.kind == "compress",
    )


CONTEXT_POLYNOMIAL: Final = PolyAgent[ContextState, ContextInput, ContextOutput](
    positions=frozenset(ContextState),
    directions=VALID_DIRECTIONS.__getitem__,
    transition=context_transition,
)
