"""What a pydantic-ai agent may give: models with `@message`, or nothing."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_ai import DeferredToolRequests, NativeOutput, PromptedOutput, ToolOutput

from apc_agents.errors import AgentInvalid
from apc_agents.typed.message import schema_of


def message_outputs(agent_id: str, output_type: Any, *, is_asked: bool = False) -> frozenset[type[BaseModel]]:
    """Return the models of an output_type.

    Raises:
        AgentInvalid: a leaf is no decorated model nor None; DeferredToolRequests needs people who are asked.
    """
    found = set()
    for leaf in _leaves(output_type):
        if leaf in (None, type(None)) or (leaf is DeferredToolRequests and is_asked):
            continue
        if leaf is DeferredToolRequests:
            raise AgentInvalid(
                f"agent {agent_id}: the output_type of the pydantic-ai agent has DeferredToolRequests: give "
                'PydanticAgent approvers=Approvers(Role("…")), who are asked'
            )
        if not (isinstance(leaf, type) and issubclass(leaf, BaseModel) and schema_of(leaf)):
            name = getattr(leaf, "__name__", repr(leaf))
            raise AgentInvalid(
                f"agent {agent_id}: the output_type of the pydantic-ai agent has {name}: give models that are "
                'decorated with @message("name/1")'
            )
        found.add(leaf)
    if not found:
        raise AgentInvalid(f'agent {agent_id}: the output_type has no model that is decorated with @message("name/1")')
    return frozenset(found)


def may_defer(output_type: Any) -> bool:
    """Return whether a run with this output_type may end with calls that wait."""
    return any(leaf is DeferredToolRequests for leaf in _leaves(output_type))


def _leaves(output_type: Any) -> Iterator[Any]:
    if isinstance(output_type, ToolOutput):
        yield from _leaves(output_type.output)
    elif isinstance(output_type, NativeOutput | PromptedOutput):
        yield from _leaves(output_type.outputs)
    elif isinstance(output_type, Sequence) and not isinstance(output_type, str):
        for one in output_type:
            yield from _leaves(one)
    elif not isinstance(output_type, type) and get_args(output_type):
        for one in get_args(output_type):
            yield from _leaves(one)
    else:
        yield output_type
