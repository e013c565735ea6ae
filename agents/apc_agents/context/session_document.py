"""The stored form of a session: a JSON document with a version."""

import orjson

from apc_agents.context.conversation import Conversation
from apc_agents.context.errors import ArgumentInvalid, ContextStoreError
from apc_agents.context.polynomial import ContextState, state_of
from apc_agents.context.window.threshold import AdaptiveThreshold
from apc_agents.context.window.window import Clock, ContextWindow

DOCUMENT_VERSION = 1


def encode_session(conversation: Conversation) -> bytes:
    """Return a conversation as a document of this version."""
    document = {
        "version": DOCUMENT_VERSION,
        "state": conversation.state.name,
        "threshold": conversation.threshold.to_document(),
        "compressions": conversation.compressions,
        "awaits_answer": conversation.awaits_answer,
        "window": conversation.window.to_document(),
    }
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


def restore_session(conversation: Conversation, stored: bytes, clock: Clock) -> None:
    """Fill an empty conversation from a document.

    Raises:
        ContextStoreError: what is stored is no session of this version.
    """
    session_id, max_tokens = conversation.session_id, conversation.config.max_tokens
    try:
        document = orjson.loads(stored)
        if document["version"] != DOCUMENT_VERSION:
            raise ContextStoreError(
                f"session {session_id} has version {document['version']}: this reads {DOCUMENT_VERSION}"
            )
        window = ContextWindow.from_document(document["window"], counter=conversation.window.counter, clock=clock)
        conversation.state = ContextState[document["state"]]
        conversation.threshold = AdaptiveThreshold(**document["threshold"])
        conversation.compressions = document["compressions"]
        conversation.awaits_answer = bool(document.get("awaits_answer"))  # older documents have none
    except (ValueError, KeyError, TypeError, AttributeError, ArgumentInvalid) as error:
        raise ContextStoreError(f"what is stored of session {session_id} is no context: {error!r}") from error
    conversation.window = window.resized(max_tokens)
    if window.max_tokens != max_tokens and conversation.state is not ContextState.EMPTY:
        conversation.state = state_of(conversation.window, conversation.threshold.effective_threshold)
