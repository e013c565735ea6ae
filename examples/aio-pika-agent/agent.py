"""An agent with aio-pika: it answers an IDEA with a CLAIM about its open risks, and a change/1 with a review/1.

It runs until SIGTERM or SIGINT. Who started it starts it again when it fails; nothing is lost.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from deliveries import Broker, Worker
from packets import Document, Key, Schemas

LONGEST_LINE = 120
Emit = Callable[[Document], None]


async def review_change(message: Document, emit: Emit) -> None:
    """Answer content that fits its schema: the gate has checked it, and checks the answer's."""
    schema, content = message["payload"]["schema"], message["payload"]["content"]
    if schema != "change/1":
        return
    long = [number for number, line in enumerate(content["lines"], 1) if len(line) > LONGEST_LINE]
    remarks = [{"line": number, "text": f"more than {LONGEST_LINE} characters"} for number in long]
    said = {"schema": "review/1", "content": {"file": content["file"], "remarks": remarks}}
    emit({"type": "MESSAGE", "payload": said})


async def review_idea(idea: Document, emit: Emit) -> None:
    """Claim something about an idea, with the idea as evidence."""
    method_id, confidence = idea["payload"]["method_id"], idea["confidence"]
    risks = [mode["id"] for mode in idea["payload"]["failure_modes"]]
    claim = {
        "claim_id": f"{method_id}-holds",
        "hypothesis_id": method_id,
        "text": f"The author names {len(risks)} ways to fail: {', '.join(risks) or 'none'}.",
        "confidence_pre": confidence,
        "confidence_post": confidence / (1 + len(risks)),
    }
    bundle = {"evidence_refs": [f"packet:{idea['packet_id']}"], "falsifiers": [], "signatures": []}
    emit({"type": "CLAIM", "confidence": confidence, "payload": claim, "proof_bundle": bundle})


def required(name: str) -> str:
    """Return a variable. Raises KeyError for one that is not set."""
    if not os.environ.get(name):
        raise KeyError(f"{name} is not set")
    return os.environ[name]


def log(event: str, **fields: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps({"event": event, **fields}), flush=True)


async def main() -> None:
    """Run the agent."""
    url = required("APC_AMQP_URL")
    names = {"agent_id": "APC_AGENT_ID", "role": "APC_AGENT_ROLE", "swarm_id": "APC_AGENT_SWARM"}
    actor = {field: required(name) for field, name in names.items()}
    schemas = os.environ.get("APC_SCHEMAS") or Path(__file__).parents[2] / "contracts" / "schemas"
    key_file = os.environ.get("APC_AGENT_KEY_FILE")
    stop, failures, loop = asyncio.Event(), list[str](), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    def lost(_: object, reason: BaseException | None = None, *__: object) -> None:
        if not stop.is_set():
            failures.append(f"the broker took away what this agent needs: {reason}")
            stop.set()

    user = unquote(urlsplit(url).username or "guest")
    async with Broker.connect(url, user, actor["agent_id"], lost) as broker:
        handlers = {"MESSAGE": review_change, "IDEA": review_idea}
        key = None if not key_file else Key(Path(key_file))
        worker = Worker(actor, broker, Schemas(Path(schemas)), handlers, log, key)
        await worker.run(lambda: log("ready", agent_id=actor["agent_id"]), stop)
    if failures:
        raise ConnectionError(failures[0])


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except Exception as error:
        sys.exit(f"aio-pika-agent: {error!r}")
