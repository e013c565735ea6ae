"""State machines: a table of (state, event) and one small interpreter."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from apc_contracts.contract.guards import Guard
from apc_contracts.contract.mermaid import Arrow, state_diagram
from apc_contracts.errors import TransitionRefused

NO_FACTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Edge:
    """One transition of one state; a guard must hold for it to be taken."""

    source: str
    event: str
    target: str
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the contract file. `edges` are expanded: one for each (state, event)."""

    name: str
    states: tuple[str, ...]
    initial: str
    terminal: frozenset[str]
    edges: tuple[Edge, ...]
    arrows: tuple[Arrow, ...]
    """The edges as the file states them, `*` not expanded."""
    _table: Mapping[tuple[str, str], Edge] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = {(edge.source, edge.event): edge for edge in self.edges}
        object.__setattr__(self, "_table", MappingProxyType(table))

    def edge(self, state: str, event: str) -> Edge | None:
        """Return the transition of this event in this state, whatever its guard; None when it is illegal."""
        return self._table.get((state, event))

    def step(self, state: str, event: str, facts: Mapping[str, Any] = NO_FACTS) -> str:
        """Return the state after `event`.

        Raises:
            TransitionRefused: the event is illegal in this state, or its guard is false with these facts.
        """
        edge = self._table.get((state, event))
        if edge is None:
            raise TransitionRefused(self.name, state, event, self._why_illegal(state, event))
        if edge.guard is not None and not edge.guard.holds(facts):
            raise TransitionRefused(self.name, state, event, f"the guard [{edge.guard.text}] is false")
        return edge.target

    def walk(self, events: Iterable[str], facts: Mapping[str, Any] = NO_FACTS) -> tuple[str, ...]:
        """Return the states passed through, the initial one first; every step uses the same facts.

        Raises:
            TransitionRefused: at the first event that cannot be taken.
        """
        states = [self.initial]
        for event in events:
            states.append(self.step(states[-1], event, facts))
        return tuple(states)

    def events(self, state: str) -> tuple[str, ...]:
        """Return the events that have a transition in this state."""
        return tuple(edge.event for edge in self.edges if edge.source == state)

    def mermaid(self) -> str:
        """Return the machine as a Mermaid state diagram."""
        terminal = [state for state in self.states if state in self.terminal]
        return state_diagram(self.initial, terminal, self.arrows)

    def _why_illegal(self, state: str, event: str) -> str:
        if state not in self.states:
            return f"there is no state {state}"
        if not any(edge.event == event for edge in self.edges):
            return f"there is no event {event}"
        legal = ", ".join(self.events(state)) or "none"
        return f"the event is illegal here; legal: {legal}"
