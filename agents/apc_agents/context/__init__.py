"""Context engineering: a conversation as a window that is measured, compressed and restored.

Every compression is reversible from what was put away; nothing PRESERVED is ever changed; no class ever sinks.
Source: docs/reference/conformance/context-engineering.md; docs/specification/agents.md section 4.
"""

from apc_agents.context.audit import CompressionAudit, FoldRecord, OnCompression, emit_compressions
from apc_agents.context.compression.projector import (
    CompressionConfig,
    CompressionResult,
    ContextProjector,
    ExpansionResult,
    FoldedTurn,
    compress,
)
from apc_agents.context.context_session import ContextSession
from apc_agents.context.conversation import SessionConfig
from apc_agents.context.errors import (
    ArchiveCorrupted,
    ArgumentInvalid,
    CompositionRefused,
    ContextError,
    ContextPressureError,
    ContextStale,
    ContextStoreError,
    InvalidTransition,
    LinearityError,
    MessageTooLong,
    PromptInvalid,
    TurnInvalid,
    UnknownPath,
    UnknownResource,
)
from apc_agents.context.laws import verify_comonad_laws
from apc_agents.context.operad import (
    CONTEXT_OPERAD,
    IDENTITY,
    Append,
    Composition,
    Compress,
    Expand,
    Promote,
    Seek,
    Tag,
    compose,
)
from apc_agents.context.polynomial import (
    CONTEXT_POLYNOMIAL,
    VALID_DIRECTIONS,
    ContextInput,
    ContextOutput,
    ContextState,
    PolyAgent,
    context_transition,
)
from apc_agents.context.prompt_assembly import PromptBuilder
from apc_agents.context.render import ComponentRenderer
from apc_agents.context.store import ContextStore, InMemoryContextStore
from apc_agents.context.stored_context import MemoryContextStore
from apc_agents.context.stream_paths import CONTEXT_TO_STREAM_ALIASES, PATHS, StreamResolver
from apc_agents.context.window.classification import classify_by_content, classify_by_role
from apc_agents.context.window.contents import Fold, Folding
from apc_agents.context.window.linearity import LinearityMap, ProvenanceEvent, ResourceClass
from apc_agents.context.window.threshold import AdaptiveThreshold
from apc_agents.context.window.turns import Turn, TurnRole
from apc_agents.context.window.window import ContextSnapshot, ContextWindow
from apc_agents.text.summarizing import ExtractiveSummarizer, Summarizer
from apc_agents.text.tokens import EstimatedTokens, TokenCounter

__all__ = [
    "CONTEXT_OPERAD",
    "CONTEXT_POLYNOMIAL",
    "CONTEXT_TO_STREAM_ALIASES",
    "IDENTITY",
    "PATHS",
    "VALID_DIRECTIONS",
    "AdaptiveThreshold",
    "Append",
    "ArchiveCorrupted",
    "ArgumentInvalid",
    "ComponentRenderer",
    "Composition",
    "CompositionRefused",
    "Compress",
    "CompressionAudit",
    "CompressionConfig",
    "CompressionResult",
    "ContextError",
    "ContextInput",
    "ContextOutput",
    "ContextPressureError",
    "ContextProjector",
    "ContextSession",
    "ContextSnapshot",
    "ContextStale",
    "ContextState",
    "ContextStore",
    "ContextStoreError",
    "ContextWindow",
    "EstimatedTokens",
    "Expand",
    "ExpansionResult",
    "ExtractiveSummarizer",
    "Fold",
    "FoldRecord",
    "FoldedTurn",
    "Folding",
    "InMemoryContextStore",
    "InvalidTransition",
    "LinearityError",
    "LinearityMap",
    "MemoryContextStore",
    "MessageTooLong",
    "OnCompression",
    "PolyAgent",
    "Promote",
    "PromptBuilder",
    "PromptInvalid",
    "ProvenanceEvent",
    "ResourceClass",
    "Seek",
    "SessionConfig",
    "StreamResolver",
    "Summarizer",
    "Tag",
    "TokenCounter",
    "Turn",
    "TurnInvalid",
    "TurnRole",
    "UnknownPath",
    "UnknownResource",
    "classify_by_content",
    "classify_by_role",
    "compose",
    "compress",
    "context_transition",
    "emit_compressions",
    "verify_comonad_laws",
]
