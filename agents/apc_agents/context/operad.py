"""The composition grammar: operations of a session that compose, and are checked before they run.

Source: docs/reference/conformance/context-engineering.md, section 3.1 (CONTEXT_OPERAD); docs/specification/agents.md
section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from apc_agents.context.compression import PLACEHOLDER_ID
from apc_agents.context.conversation import Conversation
from apc_agents.context.errors import ArgumentInvalid, CompositionRefused, ContextError, LinearityError, UnknownResource
from apc_agents.context.polynomial import KIND_OF_ROLE, VALID_DIRECTIONS, ContextState
from apc_agents.context.turns import ResourceClass, TurnRole
from apc_agents.context.window import checked_fraction, checked_position

States = frozenset[ContextState]
ANY: Final[States] = frozenset(ContextState)
NON_EMPTY: Final[States] = ANY - {ContextState.EMPTY}


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a conversation before an operation runs: the type that operations map to one another."""

    states: States
    """Those it may be in."""
    most_turns: int
    classes: Mapping[str, ResourceClass]
    """Of each known id the lowest class that it may have."""
    next_ordinal: int
    auto_compress: bool

    @classmethod
    def of(cls, conversation: Conversation) -> "Outline":
        """Return what is known of a conversation as it stands."""
        window = conversation.window
        classes = {resource_id: window.linearity.get_class(resource_id) for resource_id in window.linearity}
        ordinal = window.next_ordinal
        return cls(frozenset({conversation.state}), len(window), classes, ordinal, conversation.config.auto_compress)

    def taking(self, kind: str) -> States:
        """Return those of its states that list an input.

        A session that compresses by itself is never found PRESSURED.
        """
        return frozenset(state for state in self._met() if kind in VALID_DIRECTIONS[state])

    @property
    def compressible(self) -> dict[str, ResourceClass]:
        """The classes after something that may compress: there may be a placeholder."""
        return {**self.classes, PLACEHOLDER_ID: ResourceClass.PRESERVED}

    def _met(self) -> States:
        if self.auto_compress and ContextState.PRESSURED in self.states:
            return self.states - {ContextState.PRESSURED} | {ContextState.COMPRESSED}
        return self.states


class Operation(Protocol):
    """One operation: what it makes of an outline, and what it does."""

    def outlined(self, outline: Outline) -> Outline:
        """Return the outline after it. Raises ContextError if it cannot run after what went before."""
        ...

    async def apply(self, conversation: Conversation) -> None:
        """Apply the operation to a session. Raises ContextError."""
        ...


class _Composable:
    """Lets an operation begin a composition."""

    __slots__ = ()

    def __rshift__(self: Operation, other: "Composition | Operation") -> "Composition":
        """Return the composition of this and then the other."""
        return compose(self, other)


@dataclass(frozen=True, slots=True)
class Append(_Composable):
    """Add a turn."""

    role: TurnRole
    content: str

    def outlined(self, outline: Outline) -> Outline:
        """Require a state that accepts this role; lead to ACCUMULATING, or beyond the threshold."""
        kind = KIND_OF_ROLE[TurnRole(self.role)]
        if not outline.taking(kind):
            raise ArgumentInvalid("role", f"{kind} is taken in none of {_names(outline.states)}")
        beyond = ContextState.COMPRESSED if outline.auto_compress else ContextState.PRESSURED
        return replace(
            outline,
            states=frozenset({ContextState.ACCUMULATING, beyond}),
            most_turns=outline.most_turns + 2,
            classes={**outline.compressible, f"t{outline.next_ordinal}": ResourceClass.DROPPABLE},
            next_ordinal=outline.next_ordinal + 1,
        )

    async def apply(self, conversation: Conversation) -> None:
        """Add it."""
        await conversation.append(self.role, self.content)


@dataclass(frozen=True, slots=True)
class Tag(_Composable):
    """Assign a class to a turn."""

    resource_id: str
    resource_class: ResourceClass

    def outlined(self, outline: Outline) -> Outline:
        """Require a known turn of no higher class."""
        return _raised(outline, self.resource_id, self.resource_class)

    async def apply(self, conversation: Conversation) -> None:
        """Assign it."""
        conversation.tag(self.resource_id, self.resource_class, "composition")


@dataclass(frozen=True, slots=True)
class Promote(_Composable):
    """Raise the class of a turn."""

    resource_id: str
    resource_class: ResourceClass

    def outlined(self, outline: Outline) -> Outline:
        """Require a known turn of no higher class."""
        return _raised(outline, self.resource_id, self.resource_class)

    async def apply(self, conversation: Conversation) -> None:
        """Raise it."""
        conversation.promote(self.resource_id, self.resource_class, "composition")


@dataclass(frozen=True, slots=True)
class Compress(_Composable):
    """Compress to a target pressure in 0..1."""

    target_pressure: float

    def outlined(self, outline: Outline) -> Outline:
        """Require a state that accepts a compression; lead to COMPRESSED."""
        checked_fraction("target_pressure", self.target_pressure)
        if not any("compress" in VALID_DIRECTIONS[state] for state in outline.states):
            raise ArgumentInvalid("compress", f"it is taken in none of {_names(outline.states)}")
        compressed = frozenset({ContextState.COMPRESSED})
        return replace(outline, states=compressed, most_turns=outline.most_turns + 1, classes=outline.compressible)

    async def apply(self, conversation: Conversation) -> None:
        """Compress."""
        await conversation.compress(self.target_pressure)


@dataclass(frozen=True, slots=True)
class Expand(_Composable):
    """Put folded turns back; no ids = all of them."""

    resource_ids: tuple[str, ...] = ()

    def outlined(self, outline: Outline) -> Outline:
        """Require known turns; the pressure afterwards is unknown."""
        for resource_id in self.resource_ids:
            if resource_id not in outline.classes:
                raise UnknownResource(resource_id)
        states = outline.states | {ContextState.ACCUMULATING, ContextState.PRESSURED}
        return replace(outline, states=states, most_turns=max(outline.most_turns, len(outline.classes)))

    async def apply(self, conversation: Conversation) -> None:
        """Restore the turns."""
        await conversation.expand(self.resource_ids or None)


@dataclass(frozen=True, slots=True)
class Seek(_Composable):
    """Move the focus."""

    position: int

    def outlined(self, outline: Outline) -> Outline:
        """Require a position that the window may have."""
        checked_position(self.position, outline.most_turns)
        return outline

    async def apply(self, conversation: Conversation) -> None:
        """Move it."""
        conversation.seek(self.position)


@dataclass(frozen=True, slots=True)
class Composition:
    """Operations, one after the other. `>>` composes and is associative; IDENTITY changes nothing."""

    operations: tuple[Operation, ...] = ()

    def __rshift__(self, other: "Composition | Operation") -> "Composition":
        """Return the composition of this and then the other."""
        return Composition(self.operations + compose(other).operations)

    def check(self, conversation: Conversation) -> Outline:
        """Return what is known of the conversation afterwards, without running anything.

        What it refuses would fail whatever the texts and the pressure are. What it lets pass may still meet a
        pressure or a length that an operation refuses; the session then takes nothing of it over.

        Raises:
            CompositionRefused: an operation cannot run after those before it.
        """
        outline = Outline.of(conversation)
        for step, operation in enumerate(self.operations):
            try:
                outline = operation.outlined(outline)
            except (ContextError, ValueError) as error:
                raise CompositionRefused(step, type(operation).__name__, str(error)) from error
        return outline


IDENTITY: Final = Composition()


def compose(*parts: Composition | Operation) -> Composition:
    """Return operations and compositions as one, in their order."""
    operations: list[Operation] = []
    for part in parts:
        operations.extend(part.operations if isinstance(part, Composition) else (part,))
    return Composition(tuple(operations))


@dataclass(frozen=True, slots=True)
class Typing:
    """The states in which an operation may start, and those in which it may end."""

    operation: type[Operation]
    domain: States
    codomain: States


def _listing(kind: str) -> States:
    return frozenset(state for state, kinds in VALID_DIRECTIONS.items() if kind in kinds)


CONTEXT_OPERAD: Final[Mapping[str, Typing]] = {
    "append": Typing(Append, frozenset().union(*map(_listing, KIND_OF_ROLE.values())), NON_EMPTY),
    "tag": Typing(Tag, ANY, ANY),
    "promote": Typing(Promote, ANY, ANY),
    "compress": Typing(Compress, _listing("compress"), frozenset({ContextState.COMPRESSED})),
    "expand": Typing(Expand, ANY, ANY),
    "seek": Typing(Seek, ANY, ANY),
}
"""The operations of the grammar with their types."""


def _raised(outline: Outline, resource_id: str, resource_class: ResourceClass) -> Outline:
    known = outline.classes.get(resource_id)
    if known is None:
        raise UnknownResource(resource_id)
    if resource_class < known:
        raise LinearityError(resource_id, f"it is {known.name}, and a class never sinks to {resource_class.name}")
    return replace(outline, classes={**outline.classes, resource_id: resource_class})


def _names(states: States) -> str:
    return ", ".join(sorted(state.name for state in states))
