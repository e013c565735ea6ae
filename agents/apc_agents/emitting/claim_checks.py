"""The claim check of a worker: long texts go to the artifact store before a packet is published, and come back before
its handler sees it."""

from datetime import timedelta

from apc_agents.errors import EmitRefused, Reject, Retry
from apc_bus.artifacts import ArtifactStore
from apc_bus.errors import ArtifactCorrupt, ArtifactError, ArtifactMissing, ArtifactTooLarge
from apc_contracts.claim_check import ClaimCheckInvalid, check_in, redeem, references_of
from apc_contracts.packet import Packet

STORE_AWAY_AFTER = timedelta(seconds=5)
"""When a packet is tried again whose texts could not be stored or fetched."""
_ADVICE = (
    "shorten it, or put the content into ctx.artifacts and send its hash, for instance as an ARTIFACT (claim check)"
)


class ClaimChecks:
    """Makes packets fit, and whole again.

    Args:
        artifacts: where the texts lie; without a store nothing can be checked in or redeemed.
        max_bytes: the texts that a packet may have in all.
    """

    def __init__(self, artifacts: ArtifactStore | None, max_bytes: int) -> None:
        self._artifacts = artifacts
        self._max_bytes = max_bytes

    async def check_in(self, packet: Packet) -> Packet:
        """Return the packet as it is published, its longest texts in the store.

        Raises:
            EmitRefused: TOO_LARGE, and how to mend it.
            Retry: the store cannot take them now.
        """
        if self._artifacts is None:
            raise _too_large(f"this worker has no artifact store for its texts (APC_ARTIFACTS_URL): {_ADVICE}")
        try:
            checked = check_in(packet, self._artifacts.uri)
        except ClaimCheckInvalid as invalid:
            raise EmitRefused("SCHEMA_INVALID", invalid.path, str(invalid)) from invalid
        if checked is None:
            raise _too_large(f"it stays larger than a packet may be without its long texts: {_ADVICE}")
        size = sum(map(len, checked.texts.values()))
        if size > self._max_bytes:
            raise _too_large(f"its texts have {size} bytes; {self._max_bytes} are allowed: {_ADVICE}")
        try:
            for text in checked.texts.values():
                await self._artifacts.put(text)
        except ArtifactTooLarge as error:
            raise _too_large(f"{error}: {_ADVICE}") from error
        except ArtifactError as error:
            raise Retry(STORE_AWAY_AFTER, str(error)) from error
        return checked.packet

    async def redeem(self, packet: Packet) -> Packet:
        """Return the packet as its sender built it, each text verified against its hash.

        Raises:
            Reject: its claim check does not fit it, or asks for too much.
            ArtifactMissing, ArtifactCorrupt: the store does not hold a text.
            Retry: the store does not answer.
        """
        try:
            references = references_of(packet)
            if not references:
                return packet
            size = sum(reference.size for reference in references)
            if size > self._max_bytes:
                raise Reject(f"its texts have {size} bytes; {self._max_bytes} are allowed")
            texts = {one.hash: await self._text(one.hash, one.size) for one in references}
            return redeem(packet, texts)
        except ClaimCheckInvalid as invalid:
            raise Reject(f"claim check: {invalid}") from invalid

    async def _text(self, artifact_hash: str, size: int) -> bytes:
        if self._artifacts is None:
            raise Retry(STORE_AWAY_AFTER, "this worker has no artifact store: set APC_ARTIFACTS_URL as its sender does")
        try:
            return await self._artifacts.get(artifact_hash, max_bytes=size)
        except ArtifactTooLarge as error:
            raise Reject(f"claim check: {error}, as its metadata says") from error
        except (ArtifactMissing, ArtifactCorrupt):
            raise
        except ArtifactError as error:
            raise Retry(STORE_AWAY_AFTER, str(error)) from error


def _too_large(why: str) -> EmitRefused:
    return EmitRefused("TOO_LARGE", "$", why)
