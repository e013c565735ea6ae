"""What a packet says, in one line: the plain words of each type of payload."""

import orjson

from apc_contracts.payloads.by_type import (
    AckPayload,
    AgentRequest,
    ArbitrationPayload,
    ArtifactPayload,
    ClaimPayload,
    DecisionPayload,
    ErrorPayload,
    EvalPayload,
    IdeaPayload,
    MessagePayload,
    NackPayload,
    OpenEvalPayload,
    Payload,
    Result,
    RetractionPayload,
    SignalFields,
    SignalPayload,
    TaskIrPayload,
    TransferPayload,
)
from apc_contracts.payloads.session_signals import SessionSpec, SessionState, TaskSessionSpec
from apc_contracts.payloads.task_ir import IrClaim
from apc_contracts.text import numbered, one_line

LONGEST = 200
"""Characters of a packet's line; what is cut ends with an ellipsis."""


def gist_of(payload: Payload) -> str:
    """Return what a payload says, as one line that is safe at a terminal, at most LONGEST characters."""
    return cut(one_line(_words(payload)), LONGEST)


def cut(text: str, longest: int) -> str:
    """Return the text, or its beginning and an ellipsis when it is longer."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _words(payload: Payload) -> str:
    match payload:
        case SignalFields():
            return _signal(payload)
        case DecisionPayload():
            actions = f"then {', '.join(payload.next_actions)}" if payload.next_actions else ""
            return _joined(payload.recommendation, actions, _data(payload.result))
        case MessagePayload():
            return _joined(payload.text or "", _data(payload))
        case ErrorPayload():
            return f"{payload.error_code}: {payload.message}"
        case RetractionPayload():
            return f"{payload.target_packet_id}: {payload.reason}"
        case AckPayload() | NackPayload():
            return _joined(f"{payload.ack_status} {payload.acked_packet_id}", payload.reason or "")
    return _of_research(payload)


def _of_research(payload: Payload) -> str:
    match payload:
        case IdeaPayload():
            return f"{payload.method_id}: {payload.intent}"
        case ClaimPayload():
            confidence = f"confidence {payload.confidence_pre:.6g} → {payload.confidence_post:.6g}"
            return f"{payload.text} ({confidence})"
        case ArtifactPayload():
            return f"{payload.artifact_kind} {payload.artifact_id}"
        case EvalPayload():
            return _eval(payload.passed, {"outcome": payload.metric_set.outcome}, payload.notes)
        case OpenEvalPayload():
            return _eval(payload.passed, dict(payload.metrics), payload.notes)
        case TransferPayload():
            return f"offers {payload.protocol_id} from {payload.from_swarm} to {payload.to_swarm}"
        case ArbitrationPayload():
            return f"chose {payload.winner_candidate_id} among {numbered(len(payload.candidates), 'candidate')}"
        case TaskIrPayload():
            return _joined(*(one.text for one in payload.objects if isinstance(one, IrClaim)))
    return ""


def _eval(passed: bool, metrics: dict[str, float], notes: tuple[str, ...] | None) -> str:
    measured = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
    return _joined("passed" if passed else "did not pass", measured, *(notes or ()))


def _signal(signal: SignalFields) -> str:
    said: list[str] = [signal.reason or ""]
    match signal.session:
        case SessionState() as state:
            said.append(f"{state.state}, round {state.round}, generation {state.generation}, step {state.step}")
        case TaskSessionSpec() as spec:
            said.append(f"contract {spec.contract}, members {', '.join(spec.members)}")
        case SessionSpec() as spec:
            said += [f"swarm {one.swarm_id}: {', '.join(one.agents)}" for one in spec.swarms]
    if isinstance(signal, SignalPayload):
        if signal.question is not None:
            said += [signal.question.text, _data(signal.question.content)]
        if signal.request is not None:
            said.append(_data(signal.request))
        if signal.answer is not None:
            said += [signal.answer.outcome.value, signal.answer.note or "", _data(signal.answer.result)]
    return _joined(signal.signal.value, *said)


def _data(value: object) -> str:
    """Return the schema and content of typed data, or an object, as compact JSON."""
    match value:
        case None:
            return ""
        case MessagePayload() | AgentRequest() | Result():
            return f"{value.schema_id} {orjson.dumps(value.content, default=dict).decode()}"
        case _:
            return orjson.dumps(value, default=dict).decode()


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
