"""What a packet refers to and what it defines, by name (docs/explanation/governance.md, References).

The log derives the same two lists from the stored bytes (columns `refers_to` and `defines` of agent_packets); a test
keeps both equal.
"""

import re
from collections.abc import Iterator
from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import ArbitrationPayload, ArtifactPayload, ClaimPayload, TaskIrPayload
from apc_contracts.payloads.task_ir import IrClaim
from apc_contracts.vocabulary import PacketType

PACKET_PREFIX = "packet:"
ARTIFACT_PREFIX = "sha256:"
CLAIM_PREFIX = "claim:"
_DEFINING = frozenset({PacketType.ARTIFACT, PacketType.CLAIM, PacketType.TASK_IR})
_PACKET = re.compile(r"(?:packet:)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")
_ARTIFACT = re.compile(r"sha256:[0-9a-fA-F]{64}")


def reference_of(text: str) -> str | None:
    """Return an evidence_ref in canonical form, `packet:<uuid>` or `sha256:<hex>` in lower case; None for other text.

    None for any other text.
    """
    found = _PACKET.fullmatch(text)
    if found is not None:
        return PACKET_PREFIX + found[1].lower()
    return text.lower() if _ARTIFACT.fullmatch(text) else None


def refers_to(packet: Packet) -> tuple[str, ...]:
    """Return the packets and artifacts that a packet rests on beside its parent, each once, in the packet's order.

    They come from evidence_refs, the packet_ref_ids of an ARBITRATION's candidates, and the hash of an ARTIFACT
    (another ARTIFACT with the same bytes stands and falls with it).
    """
    return tuple(dict.fromkeys(_referred(packet)))


def defines(packet: Packet) -> tuple[str, ...]:
    """Return the names that others can refer to: an ARTIFACT's hash, the claims of a CLAIM or TASK_IR."""
    # The types first: isinstance costs a microsecond where it says no (pydantic's metaclass runs Python).
    if packet.packet_type not in _DEFINING:
        return ()
    payload = packet.payload
    if isinstance(payload, ArtifactPayload):
        return (payload.artifact_hash,)
    if isinstance(payload, ClaimPayload):
        return (CLAIM_PREFIX + payload.claim_id,)
    if isinstance(payload, TaskIrPayload):
        claims = (CLAIM_PREFIX + one.id for one in payload.objects if isinstance(one, IrClaim))
        return tuple(dict.fromkeys(claims))
    return ()


def packet_named(reference: str) -> UUID | None:
    """Return the packet_id in a reference `packet:<uuid>`; None in any other reference."""
    return UUID(reference.removeprefix(PACKET_PREFIX)) if reference.startswith(PACKET_PREFIX) else None


def _referred(packet: Packet) -> Iterator[str]:
    if packet.proof_bundle is not None:
        for text in packet.proof_bundle.evidence_refs:
            reference = reference_of(text)
            if reference is not None:
                yield reference
    if packet.packet_type is PacketType.ARBITRATION:
        for candidate in packet.payload_as(ArbitrationPayload).candidates:
            yield from (f"{PACKET_PREFIX}{packet_id}" for packet_id in candidate.packet_ref_ids)
    elif packet.packet_type is PacketType.ARTIFACT:
        yield packet.payload_as(ArtifactPayload).artifact_hash
