"""The claim check: long texts of an oversized packet are replaced by hashes; their bytes go to the artifact store.

A text of `payload` or `metadata` is replaced by `sha256:` and the hash of its UTF-8 bytes, and `metadata.claim_check`
lists what was replaced. So the packet stays valid and small, keeps what the gate judges, and `payload_hash` and
`packet_hash` commit to the texts (docs/reference/protocol.md section 2).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from apc_contracts.contract_model import ArtifactHash, Model
from apc_contracts.errors import ContractError
from apc_contracts.limits import DEFAULT_LIMITS, DocumentLimits
from apc_contracts.packet import Packet
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.parsing import parse_packet, refusal_of

CLAIM_CHECK: Final = "claim_check"
"""The key in a packet's metadata."""
MEDIA_TYPE: Final = "text/plain; charset=utf-8"
MIN_TEXT_BYTES: Final = 1024
"""Shorter texts are not replaced: a reference itself takes a few hundred bytes."""
MAX_REFERENCES: Final = 256
MAX_PATH: Final = 1024
_LIST_BYTES: Final = 64
"""Upper bound of the bytes that `"metadata":{"claim_check":[]},` takes."""
_PARTS: Final = ("payload", "metadata")
_CONTROL_TEXTS: Final = frozenset({"expression"})
"""Texts that the gate reads: the budget of a task."""

Document = dict[str, Any]


class TextReference(Model):
    """A text in the artifact store.

    `path` is its place in the packet (a JSON Pointer, RFC 6901), which now holds the hash. `size` is in bytes of UTF-8;
    `uri` is where the sender stored it, only a hint: the receiver asks its own store for the hash.
    """

    path: str = Field(pattern="^/(payload|metadata)/", max_length=MAX_PATH)
    hash: ArtifactHash
    size: int = Field(ge=0)
    media_type: Literal["text/plain; charset=utf-8"]
    uri: str | None = Field(default=None, max_length=2048)


class ClaimCheckInvalid(ContractError):
    """`metadata.claim_check` does not fit its packet, or a text does not fit its place; `path` says where."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


@dataclass(frozen=True, slots=True)
class CheckedIn:
    """A packet whose long texts were replaced, and the bytes of these texts by hash."""

    packet: Packet
    texts: Mapping[str, bytes]


_references = TypeAdapter(tuple[TextReference, ...])


def check_in(
    packet: Packet, uri_of: Callable[[str], str | None], limits: DocumentLimits = DEFAULT_LIMITS
) -> CheckedIn | None:
    """Return the packet with as many of its longest texts replaced as needed; None when it cannot fit.

    Deterministic: the same packet gives the same payload. Raises ClaimCheckInvalid when its metadata has a claim_check
    already.
    """
    document = _document_of(packet)
    if CLAIM_CHECK in (document.get("metadata") or {}):
        raise ClaimCheckInvalid(f"metadata.{CLAIM_CHECK}", "is made by the SDK of a packet that is too large: drop it")
    texts: dict[str, bytes] = {}
    references: list[Document] = []
    size = len(canonical_json(document)) + _LIST_BYTES
    for place in sorted(_long_texts(document), key=lambda one: (-len(one.text), one.path)):
        if size <= limits.size_bytes or len(references) == MAX_REFERENCES:
            break
        text = place.text.encode()
        artifact_hash = f"sha256:{sha256(text).hexdigest()}"
        reference = TextReference(
            path=place.path, hash=artifact_hash, size=len(text), media_type=MEDIA_TYPE, uri=uri_of(artifact_hash)
        ).model_dump(mode="json", exclude_none=True)
        size += (
            len(canonical_json(artifact_hash)) - len(canonical_json(place.text)) + len(canonical_json(reference)) + 1
        )
        place.put(artifact_hash)
        texts[artifact_hash] = text
        references.append(reference)
    document.setdefault("metadata", {})[CLAIM_CHECK] = references
    body = canonical_json(document)
    return CheckedIn(parse_packet(body, limits), texts) if len(body) <= limits.size_bytes else None


def references_of(packet: Packet) -> tuple[TextReference, ...]:
    """Return the texts that were replaced in a packet; empty when there are none. Raises ClaimCheckInvalid."""
    if packet.metadata is None or CLAIM_CHECK not in packet.metadata:
        return ()
    try:
        texts = _references.validate_python(packet.metadata[CLAIM_CHECK])
    except ValidationError as error:
        refused = refusal_of(error)
        raise ClaimCheckInvalid(f"metadata.{CLAIM_CHECK}", f"{refused.path}: {refused.message}") from error
    if len(texts) > MAX_REFERENCES:
        raise ClaimCheckInvalid(f"metadata.{CLAIM_CHECK}", f"{len(texts)} references; {MAX_REFERENCES} are allowed")
    return texts


def claimed_places(packet: Packet) -> list[list[str]]:
    """Return where texts of a packet were replaced, as words of the paths; [[]], everywhere, if its list is broken."""
    if packet.metadata is None or CLAIM_CHECK not in packet.metadata:
        return []
    try:
        return [_words_of(reference.path) for reference in references_of(packet)]
    except ClaimCheckInvalid:
        return [[]]


def redeem(packet: Packet, texts: Mapping[str, bytes], limits: DocumentLimits = DEFAULT_LIMITS) -> Packet:
    """Return the packet as its sender built it: all texts restored, without metadata.claim_check.

    Args:
        texts: the bytes by hash, verified against it.
        limits: bounds of levels and values; the size is not limited.

    Raises:
        ClaimCheckInvalid: a reference points nowhere or to something else than its hash; a text is not UTF-8, or the
    packet's schema refuses it.
    """
    document = _document_of(packet)
    references = references_of(packet)
    for reference in references:
        place = _place_at(document, reference.path)
        if place is None or place.text != reference.hash:
            raise ClaimCheckInvalid(reference.path, f"there is no text {reference.hash} at this place of the packet")
        try:
            place.put(texts[reference.hash].decode())
        except UnicodeDecodeError as error:
            raise ClaimCheckInvalid(reference.path, f"the text {reference.hash} is no UTF-8") from error
    metadata = {key: value for key, value in document["metadata"].items() if key != CLAIM_CHECK}
    document["metadata"] = metadata
    if not metadata:
        del document["metadata"]
    body = canonical_json(document)
    try:
        return parse_packet(body, DocumentLimits(len(body), limits.levels, limits.nodes))
    except ContractError as refused:
        raise ClaimCheckInvalid("$", f"with its texts the packet is refused: {refused}") from refused


@dataclass(frozen=True, slots=True)
class _Place:
    """A text in a document, and the object or array that holds it."""

    path: str
    holder: Any
    key: str | int

    @property
    def text(self) -> str:
        return str(self.holder[self.key])

    def put(self, text: str) -> None:
        self.holder[self.key] = text


def _document_of(packet: Packet) -> Document:
    document: Document = packet.model_dump(mode="json", exclude_none=True)
    return document


def _long_texts(document: Document) -> Iterator[_Place]:
    pending = [(f"/{part}", document[part]) for part in _PARTS if part in document]
    while pending:
        path, holder = pending.pop()
        for key, value in _members(holder):
            place = f"{path}/{_escaped(key)}"
            if isinstance(value, str):
                is_long = len(value.encode()) >= MIN_TEXT_BYTES
                if is_long and key not in _CONTROL_TEXTS and len(place) <= MAX_PATH:
                    yield _Place(place, holder, key)
            elif isinstance(value, dict | list):
                pending.append((place, value))


def _members(holder: Any) -> Iterator[tuple[str | int, Any]]:
    yield from holder.items() if isinstance(holder, dict) else enumerate(holder)


def _escaped(key: str | int) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _place_at(document: Document, path: str) -> _Place | None:
    """Return the text at a JSON Pointer, with its container; None when there is none."""
    *way, last = _words_of(path)
    holder: Any = document
    for word in way:
        holder = _member(holder, word)
    if not isinstance(_member(holder, last), str):
        return None
    return _Place(path, holder, last if isinstance(holder, dict) else int(last))


def _member(holder: Any, word: str) -> Any:
    match holder:
        case dict():
            return holder.get(word)
        case list() if word.isdecimal() and word.isascii() and int(word) < len(holder):
            return holder[int(word)]
        case _:
            return None


def _words_of(path: str) -> list[str]:
    return [_unescaped(word) for word in path.split("/")[1:]]


def _unescaped(word: str) -> str:
    return word.replace("~1", "/").replace("~0", "~")
