"""What viewers of traces know agents, tools and messages by: all names of attributes, and the spans of an agent's work.

Source: OpenTelemetry semantic conventions for generative AI (`gen_ai.*`, experimental) and for messaging.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from apc_bus.telemetry import (
    NO_TRACE,
    SpanKind,
    TraceHeaders,
    in_work,
    is_tracing,
    note,
    packet_attributes,
    tracer_provider,
)
from apc_contracts.packet import Packet

OPERATION = "gen_ai.operation.name"
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"
AGENT_ID = "gen_ai.agent.id"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
"""The session: one conversation, however many agents take part."""
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
FUNCTION = "function"
MESSAGING_SYSTEM = "messaging.system"
RABBITMQ = "rabbitmq"
MESSAGING_TYPE = "messaging.operation.type"
MESSAGING_NAME = "messaging.operation.name"
DESTINATION = "messaging.destination.name"
_NOTHING = nullcontext()


def messaging(operation: str, name: str, destination: str) -> Mapping[str, str]:
    """Return what a span says of the message that it sends or takes.

    Args:
        operation: `send` or `process`.
        name: what this product calls it.
        destination: the queue or exchange.
    """
    return {MESSAGING_SYSTEM: RABBITMQ, MESSAGING_TYPE: operation, MESSAGING_NAME: name, DESTINATION: destination}


def in_agent(
    agent_id: str,
    packet: Packet,
    parent: TraceHeaders,
    message: Mapping[str, str],
    expected: tuple[type[Exception], ...] = (),
    undone: tuple[type[Exception], ...] = (),
) -> AbstractContextManager[None]:
    """Run a handler in the span of its agent, whatever it calls or sends belongs to it; nothing while tracing is off.

    Where every hop makes a span, that of the hop becomes the agent's.

    Args:
        agent_id: whose handler runs.
        packet: what it handles.
        parent: the trace that the packet belongs to.
        message: what the span says of the delivery (`messaging`).
        expected: exceptions of the handler that are no failures.
        undone: exceptions after which it runs again, as if it had not begun.
    """
    if tracer_provider() is None:
        return _NOTHING
    return _in_agent(agent_id, packet, parent, message, expected, undone)


@contextmanager
def _in_agent(
    agent_id: str,
    packet: Packet,
    parent: TraceHeaders,
    message: Mapping[str, str],
    expected: tuple[type[Exception], ...],
    undone: tuple[type[Exception], ...],
) -> Iterator[None]:
    session = packet.trace.session_id
    own = {OPERATION: INVOKE_AGENT, AGENT_ID: agent_id, AGENT_NAME: agent_id, CONVERSATION: session}
    if is_tracing():
        note(own)
        with _known_to_models(agent_id, session):
            yield
        return
    attributes = {**packet_attributes(packet), **message, **own}
    name = f"{INVOKE_AGENT} {agent_id}"
    with (
        in_work(name, SpanKind.CONSUMER, parent or NO_TRACE, attributes, expected, undone),
        _known_to_models(agent_id, session),
    ):
        yield


@contextmanager
def _known_to_models(agent_id: str, session: str) -> Iterator[None]:
    """Let the spans of model requests name agent and session: pydantic-ai reads both from the baggage."""
    from opentelemetry import baggage, context

    known = baggage.set_baggage(AGENT_NAME, agent_id, baggage.set_baggage(CONVERSATION, session))
    token = context.attach(known)
    try:
        yield
    finally:
        context.detach(token)


def in_tool(
    tool: str, call_id: str, agent_id: str, session_id: str, expected: tuple[type[Exception], ...] = ()
) -> AbstractContextManager[None]:
    """Run a call of a tool in its span: names alone, never arguments or results; nothing while tracing is off.

    Args:
        tool: its name.
        call_id: of the call.
        agent_id: whose tool it is.
        session_id: in which it is called.
        expected: exceptions of the tool that are no failures.
    """
    if tracer_provider() is None:
        return _NOTHING
    attributes = {
        OPERATION: EXECUTE_TOOL,
        TOOL_NAME: tool,
        TOOL_CALL: call_id,
        TOOL_TYPE: FUNCTION,
        AGENT_ID: agent_id,
        AGENT_NAME: agent_id,
        CONVERSATION: session_id,
    }
    return in_work(f"{EXECUTE_TOOL} {tool}", SpanKind.INTERNAL, None, attributes, expected)
