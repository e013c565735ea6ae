"""Actions: what an LLM agent answers, carried out with its tools (docs/specification/agents.md section 5).

`ToolRegistry` holds the tools, `ActionExecutor` runs an AgentResponse in an `ActionContext` and reports one
`Observation` for each action.
"""

from apc_agents.actions.action_context import ActionContext, ActionMemory, StateMemory
from apc_agents.actions.executor import ActionExecutor
from apc_agents.actions.report import ActionReport, Observation, ObservationStatus
from apc_agents.actions.verbs import VERBS
from apc_agents.tools.call import Effect, ToolCall
from apc_agents.tools.errors import (
    ActionError,
    ActionsRefused,
    KnowledgeOutOfScope,
    Problem,
    ReferenceUnknown,
    TaskLost,
    TaskUnknown,
    ToolFailed,
    ToolInvalid,
    ValueUnserialisable,
)
from apc_agents.tools.knowledge import KnowledgeScope
from apc_agents.tools.tool_registry import Script, Tool, ToolRegistry

__all__ = [
    "VERBS",
    "ActionContext",
    "ActionError",
    "ActionExecutor",
    "ActionMemory",
    "ActionReport",
    "ActionsRefused",
    "Effect",
    "KnowledgeOutOfScope",
    "KnowledgeScope",
    "Observation",
    "ObservationStatus",
    "Problem",
    "ReferenceUnknown",
    "Script",
    "StateMemory",
    "TaskLost",
    "TaskUnknown",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "ToolInvalid",
    "ToolRegistry",
    "ValueUnserialisable",
]
