"""Context engineering: a conversation as a window that is measured, compressed and restored.

Every compression is reversible from what was put away; nothing PRESERVED is ever changed; no class ever sinks.
Source: context-engineering-protocol; agents.md section 4.
"""

from apc_agents.context.classification import classify_by_content, classify_by_role
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
from apc_agents.context.linearity import LinearityMap, Provenance, ResourceClass
from apc_agents.context.projector import (
    CompressionConfig,
    CompressionResult,
    ContextProjector,
    ExpansionResult,
    FoldedTurn,
    compress,
)
from apc_agents.context.summarizing import ExtractiveSummarizer, Summarizer
from apc_agents.context.threshold import AdaptiveThreshold
from apc_agents.context.tokens import EstimatedTokens, TokenCounter
from apc_agents.context.turns import Turn, TurnRole
from apc_agents.context.window import ContextSnapshot, ContextWindow, Fold, Folding

__all__ = [
    "AdaptiveThreshold",
    "ArchiveCorrupted",
    "ArgumentInvalid",
    "CompositionRefused",
    "CompressionConfig",
    "CompressionResult",
    "ContextError",
    "ContextPressureError",
    "ContextProjector",
    "ContextSnapshot",
    "ContextStale",
    "ContextStoreError",
    "ContextWindow",
    "EstimatedTokens",
    "ExpansionResult",
    "ExtractiveSummarizer",
    "Fold",
    "FoldedTurn",
    "Folding",
    "InvalidTransition",
    "LinearityError",
    "LinearityMap",
    "MessageTooLong",
    "PromptInvalid",
    "Provenance",
    "ResourceClass",
    "Summarizer",
    "TokenCounter",
    "Turn",
    "TurnInvalid",
    "TurnRole",
    "UnknownPath",
    "UnknownResource",
    "classify_by_content",
    "classify_by_role",
    "compress",
    "verify_comonad_laws",
]
