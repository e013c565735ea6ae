"""The team that the conformance kit of A2A asks for: the prefix of a messageId says what it does."""

import asyncio
from datetime import timedelta
from typing import Any

from apc_a2a import A2AArtifact, A2AMessage, A2AReply
from apc_agents import SUBSTRATE, Agent, HandlerContext, Role, Team

sut = Agent("sut", role="sut", swarm="sut")
TEXT_FILE = {"mediaType": "text/plain", "filename": "output.txt"}
SHOWN: dict[str, list[dict[str, Any]]] = {
    "tck-stream-artifact-text": [{"text": "Streamed text content"}],
    "tck-stream-artifact-file": [{"raw": "dGNr", **TEXT_FILE}],
    "tck-stream-ordering-001": [{"text": "Ordered output"}],
    "tck-stream-001": [{"text": "Stream hello from TCK"}],
    "tck-stream-003": [{"text": "Stream hello from TCK"}],
    "tck-artifact-file-url": [{"url": "https://example.com/output.txt", **TEXT_FILE}],
    "tck-artifact-file": [{"raw": "dGNr", **TEXT_FILE}],
    "tck-artifact-text": [{"text": "Generated text content"}],
    "tck-artifact-data": [{"data": {"key": "value", "count": 42}}],
}
"""Prefix -> the parts of the one artifact; the first that fits counts."""


@sut.on(A2AMessage)
async def handle(said: A2AMessage, ctx: HandlerContext) -> None:
    await ctx.complete(await reply(said.message_id, ctx))


async def reply(name: str, ctx: HandlerContext) -> A2AReply:
    """Do what a messageId asks for; return the end."""
    if name.startswith("tck-stream-artifact-chunked"):
        await show(ctx, [{"text": "chunk-1 "}], last=False)
        await show(ctx, [{"text": "chunk-2"}], append=True)
        return A2AReply()
    if name.startswith("test-resubscribe-message-id"):
        await asyncio.sleep(4)
        return A2AReply()
    for prefix, parts in SHOWN.items():
        if name.startswith(prefix):
            await show(ctx, parts)
            return text(f"Unhandled: {name}") if "artifact-" in prefix and "stream" not in prefix else A2AReply()
    if name.startswith("tck-message-response"):
        return A2AReply(parts=[{"text": "Direct message response"}], as_message=True)
    if name.startswith("tck-input-required"):
        for turn in range(5):
            answer = await ctx.ask(f"What next? ({turn})", to=Role("caller"), timeout=timedelta(hours=1))
            if "history message" not in (answer.note or ""):
                break
        return text("Hello from TCK")
    if name.startswith("tck-reject-task"):
        return A2AReply(parts=[{"text": "rejected"}], rejected=True)
    return text("Hello from TCK" if name.startswith("tck-complete-task") else f"Unhandled: {name}")


def text(said: str) -> A2AReply:
    """Return an end with a text."""
    return A2AReply(parts=[{"text": said}])


async def show(ctx: HandlerContext, parts: list[dict[str, Any]], *, append: bool = False, last: bool = True) -> None:
    """Show an artifact."""
    await ctx.emit(A2AArtifact(artifact_id="out", parts=parts, append=append, last=last), to=SUBSTRATE)


team = Team("sut", agents=[sut], entry="sut", input=A2AMessage, messages=[A2AArtifact, A2AReply])
