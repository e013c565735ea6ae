"""Inputs that are no packets: unreadable bodies, dead-lettered inputs, inputs that stopped a gate."""

from apc_bus import headers
from apc_bus.port import Message
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.verdict import Refusal
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.fact_finding import uuid_of
from apc_orchestrator.judging.inputs import DeadInput
from apc_orchestrator.judging.quarantine import Quarantine, dead_input_refusal
from apc_orchestrator.judging.refusal_answers import Answers


class Unreadable:
    """Records such inputs with their bytes, and answers them when the broker knows who sent them."""

    def __init__(self, quarantine: Quarantine, answers: Answers, own_user: str) -> None:
        self._quarantine = quarantine
        self._answers = answers
        self._own_user = own_user

    def refuse(self, batch: Batch, message: Message, refused: PacketRefused) -> None:
        """Record a body that is no packet, and answer it."""
        message_id, user_id = uuid_of(message.message_id), message.user_id
        is_kept = self._quarantine.record(
            batch, "unreadable", str(refused), message.body, code=refused.code, packet_id=message_id, user_id=user_id
        )
        self._record_properties(batch, message, "unreadable", str(refused))
        if is_kept and message_id is not None:
            refusal = Refusal(refused.code, "parse", refused.path, refused.message)
            self._answers.unreadable(batch, message_id, refusal, message.user_id)

    def refuse_dead(self, batch: Batch, found: DeadInput, message: Message) -> None:
        """Record an input that died before it could be judged, and answer it."""
        if message.user_id != self._own_user:
            reason = f"{message.type} by {message.user_id}: only the orchestrator reports dead inputs"
            self._quarantine.record(batch, "security", reason, message.body, user_id=message.user_id)
            return
        message_id = uuid_of(found.message_id)
        refusal = dead_input_refusal(found.queue, found.reason)
        is_kept = self._quarantine.record(
            batch,
            "dead_input",
            refusal.message,
            message.body,
            code=refusal.code,
            packet_id=message_id,
            user_id=found.user_id,
        )
        self._record_riding(batch, message, "dead_input", refusal.message, found.user_id)
        if is_kept and message_id is not None:
            self._answers.unreadable(batch, message_id, refusal, found.user_id)

    def set_aside(self, batch: Batch, message: Message, properties: bytes | None = None) -> None:
        """Record an input that ended the gate each time it was alone there. It is never judged.

        It draws on no quota: the defect is the gate's.
        """
        reason = "the gate failed on this input; it is kept so that the gate can be fixed"
        if properties is None:
            unread = message.headers.get(headers.UNREADABLE)
            properties = unread if isinstance(unread, bytes) else None
        found = [(reason, message.body)]
        if properties is not None:
            found.append((f"{reason} [its AMQP properties]", properties))
        riding = message.headers.get(headers.RECEIPTS)
        if isinstance(riding, str):
            found.append((reason, riding.encode()))
        for why, raw in found:
            self._quarantine.record(batch, "unjudgeable", why, raw, user_id=message.user_id, is_always_kept=True)

    def _record_riding(self, batch: Batch, message: Message, kind: str, reason: str, user_id: str | None) -> None:
        """Record the receipts that rode on such an input: nothing else keeps them."""
        riding = message.headers.get(headers.RECEIPTS)
        if isinstance(riding, str):
            self._quarantine.record(batch, kind, reason, riding.encode(), user_id=user_id)

    def _record_properties(self, batch: Batch, message: Message, kind: str, reason: str) -> None:
        """Record the AMQP properties that could not be read: receipts may have ridden in them."""
        properties = message.headers.get(headers.UNREADABLE)
        if isinstance(properties, bytes):
            self._quarantine.record(batch, kind, f"{reason} [its AMQP properties]", properties, user_id=message.user_id)
