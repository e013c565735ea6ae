"""What a pydantic-ai agent may give: models with `@message`, or nothing."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_ai import NativeOutput, PromptedOutput, ToolOutput

from apc_agents.errors import AgentInvalid
from apc_agents.typed.message import schema_of


def message_outputs(agent_id: str, output_type: Any) -> frozenset[type[BaseModel]]:
    """Return the models of an output_type. Raises AgentInvalid for a leaf that is no decorated model nor None."""
    found = set()
    for leaf in _leaves(output_type):
        if leaf in (None, type(None)):
            continue
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
