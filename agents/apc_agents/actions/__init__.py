"""Actions: what an LLM agent answers, carried out with its tools (docs/specification/agents.md section 5).

`ToolRegistry` holds the tools, `ActionExecutor` runs an AgentResponse in an `ActionContext` and reports one
`Observation` for each action.
"""

from apc_agents.actions.action_context import ActionContext, ActionMemory, StateMemory
from apc_agents.actions.executor import ActionExecutor, ActionReport, Observation, ObservationStatus
from apc_agents.actions.verbs import VERBS
from apc_agents.tools import (
    ActionError,
    ActionsRefused,
    Effect,
    KnowledgeOutOfScope,
    KnowledgeScope,
    Problem,
    ReferenceUnknown,
    Script,
    TaskLost,
    TaskUnknown,
    Tool,
    ToolCall,
    ToolFailed,
    ToolInvalid,
    ToolRegistry,
    ValueUnserialisable,
)

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
