"""Checks proofs and exported bundles of the log, offline: Python's standard library and `cryptography`, nothing else.

This file runs alone: `python offline_verifier.py FILE --key KEY`. Formats: docs/reference/log-format.md; hashing:
RFC 6962 section 2.1; checkpoints: C2SP tlog-checkpoint and signed-note with Ed25519.
"""

import argparse
import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PROOF, CONSISTENCY, BUNDLE = "apc-log-proof", "apc-log-consistency", "apc-log-bundle"
VERSIONS: Mapping[str, int] = {PROOF: 1, CONSISTENCY: 1, BUNDLE: 3}
"""Format of a file -> its version."""
OLD_BUNDLE = 2
"""Of release 0.1.0. Its contents do not name the other logs of the run: one that was left out is not missed."""
_OLD_SAYS = (
    "NOT SHOWN: whether another log (shard) holds entries of the run, too. This bundle is of version 2, whose signed "
    "contents do not say. Ask the log's owner to export the run again with `apc log export`, and check that"
)
_ED25519 = b"\x01"
_MAX_SIZE = 1 << 53
_SIGNATURE = "— "
_SEALED = b"\x00apc1"
"""How an encrypted body begins."""
_LONGEST = 300
"""Characters of a sentence about a packet that are printed."""
_PLACE = ("epoch", "batch_no", "recorded_at")

COLUMNS: Mapping[tuple[str, int], tuple[str, ...]] = {
    ("packet", 1): (
        *_PLACE,
        *("packet_id", "packet_type", "channel", "run_phase", "session_id", "run_id", "task_id", "root_packet_id"),
        *("parent_packet_id", "cause_packet_id", "sender_agent_id", "sender_role", "sender_swarm_id", "recipients"),
        *("generation", "round", "step", "confidence", "created_at", "expires_at", "judged_at", "verdict"),
        *("refusal_code", "refusal", "contract_hash", "facts", "stored_hash", "packet_hash", "user_id", "signature"),
    ),
    ("hop", 1): (
        *_PLACE,
        *("session_id", "packet_id", "recipient", "attempt", "from_state", "to_state", "events", "occurred_at"),
        *("actor", "metadata"),
    ),
    ("lineage", 1): (
        *_PLACE,
        *("session_id", "packet_id", "protocol_id", "parent_protocol_ids", "ancestor_swarms", "cross_use_case"),
        *("transfer_mode", "from_swarm", "to_swarm", "sender_score", "receiver_score"),
    ),
    ("coordination", 1): (
        *_PLACE,
        *("session_id", "round", "generation", "step", "cause_packet_id", "event", "from_state", "to_state", "facts"),
    ),
    ("conflict", 1): (
        *_PLACE,
        *("session_id", "packet_id", "kind", "code", "reason", "raw_hash", "first_hash", "second_hash", "user_id"),
    ),
    ("registry", 1): (*_PLACE, "change_id", "agent_id", "change"),
    ("log", 1): (*_PLACE, "kind", "actor", "detail"),
}
"""(kind, version) -> what stands in an entry after kind, version, shard and seq. A kind that gains a column gains a
version: a row says by its column entry_version how it is read, forever."""


class CheckFailed(Exception):
    """What was to be proven is not."""


# RFC 6962 section 2.1


def leaf_hash(entry: bytes) -> bytes:
    """Return the SHA-256 of an entry as a leaf: the prefix 0 keeps leaves and inner nodes apart."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the SHA-256 of an inner node, with the prefix 1."""
    return sha256(b"\x01" + left + right).digest()


def root_by_inclusion(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> bytes:
    """Return the root that follows from a leaf and its audit path (RFC 9162 section 2.1.3.2).

    `index` is the leaf's number from 0, `size` the number of leaves.

    Raises:
        CheckFailed: the path is too short or too long, or there is no such leaf.
    """
    if not 0 <= index < size:
        raise CheckFailed(f"there is no leaf {index} in a tree of {size}")
    node, last, root = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            raise CheckFailed("the path is too long")
        if node & 1 or node == last:
            root = node_hash(sibling, root)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            root = node_hash(root, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise CheckFailed("the path is too short")
    return root


def check_consistency(old: tuple[int, bytes], new: tuple[int, bytes], path: Sequence[bytes]) -> None:
    """Check that the tree (size, root) `new` extends `old` (RFC 9162 section 2.1.4.2). Raises CheckFailed."""
    (first, old_root), (second, new_root) = old, new
    if not 0 < first <= second:
        raise CheckFailed(f"a tree of {second} cannot extend one of {first}")
    if first == second:
        if path or old_root != new_root:
            raise CheckFailed("two roots for one size, or a path where none is needed")
        return
    hashes = list(path)
    if first & (first - 1) == 0:
        hashes.insert(0, old_root)
    if not hashes:
        raise CheckFailed("the path is too short")
    node, last = first - 1, second - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old_found = new_found = hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            raise CheckFailed("the path is too long")
        if node & 1 or node == last:
            old_found, new_found = node_hash(sibling, old_found), node_hash(sibling, new_found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new_found = node_hash(new_found, sibling)
        node, last = node >> 1, last >> 1
    if last or old_found != old_root or new_found != new_root:
        raise CheckFailed("the later log does not extend the earlier one")


# C2SP signed-note and tlog-checkpoint


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Who signs checkpoints: an Ed25519 key under a name, which is the origin of the log."""

    name: str
    raw: bytes
    """32 bytes."""

    @property
    def key_id(self) -> bytes:
        """The 4 bytes that a signature starts with."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.raw).digest()[:4]

    def __str__(self) -> str:
        """Return the key as `parse_key` reads it (the "vkey" of signed-note)."""
        return f"{self.name}+{self.key_id.hex()}+{base64.b64encode(_ED25519 + self.raw).decode()}"


def parse_key(text: str) -> PublicKey:
    """Return a key from `name+id+base64`. Raises CheckFailed."""
    parts = text.strip().split("+", 2)
    raw = _from_base64(parts[2]) if len(parts) == 3 else b""
    if len(raw) != 33 or raw[:1] != _ED25519:
        raise CheckFailed(f"not an Ed25519 key as `apc log key` prints it: {text.strip()!r}")
    key = PublicKey(parts[0], raw[1:])
    if key.key_id.hex() != parts[1]:
        raise CheckFailed(f"the key's id does not fit its name and bytes: {text.strip()!r}")
    return key


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree head: what the log of one shard, `origin`, held when it had `size` entries."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The signed text."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True, slots=True)
class SignedNote:
    """A checkpoint and the signatures under it: (name, key id and signature)."""

    checkpoint: Checkpoint
    signatures: tuple[tuple[str, bytes], ...]

    def check(self, key: PublicKey) -> Checkpoint:
        """Return the checkpoint, once the key's signature holds. Raises CheckFailed."""
        if key.name != self.checkpoint.origin:
            raise CheckFailed(f"a checkpoint of {self.checkpoint.origin!r}, and the key is of {key.name!r}")
        what = f"the checkpoint of {self.checkpoint.size} entries"
        _check_signatures(self.checkpoint.text, self.signatures, key, what)
        return self.checkpoint


def _check_signatures(text: str, signatures: Sequence[tuple[str, bytes]], key: PublicKey, what: str) -> None:
    mine = [blob[4:] for name, blob in signatures if name == key.name and blob[:4] == key.key_id]
    if not mine:
        raise CheckFailed(f"{what} is not signed by {key}")
    for signature in mine:
        try:
            Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, text.encode())
        except InvalidSignature:
            raise CheckFailed(f"the signature of {what} is wrong") from None


def parse_note(text: str) -> SignedNote:
    """Parse one signed checkpoint, exactly as it was written. Raises CheckFailed."""
    body, separator, tail = text.partition("\n\n")
    lines = body.split("\n")
    if not separator or len(lines) != 3 or not tail.endswith("\n"):
        raise CheckFailed("not a signed checkpoint: origin, size, root, an empty line, signatures")
    origin, size, root = lines
    if not origin or not size.isascii() or not size.isdigit() or len(size) > 16 or str(int(size)) != size:
        raise CheckFailed("the checkpoint's origin or size is malformed")
    checkpoint = Checkpoint(origin, int(size), _from_base64(root))
    if len(checkpoint.root) != 32 or int(size) > _MAX_SIZE:
        raise CheckFailed("the checkpoint's root is no SHA-256, or its size is beyond 2^53")
    return SignedNote(checkpoint, tuple(_parse_signature(line) for line in tail[:-1].split("\n")))


def _parse_signature(line: str) -> tuple[str, bytes]:
    name, _, signature = line.removeprefix(_SIGNATURE).partition(" ")
    blob = _from_base64(signature)
    if not line.startswith(_SIGNATURE) or not name or len(blob) < 5:
        raise CheckFailed(f"not a signature line: {line!r}")
    return name, blob


@dataclass(frozen=True, slots=True)
class Contents:
    """What the log of one shard holds of a run, as its key signs it: that is all of it."""

    origin: str
    size: int
    """Entries that the log had."""
    run_id: str
    origins: tuple[str, ...]
    """All logs that hold something of the run, this one among them; empty in a bundle of version 2."""
    ranges: tuple[tuple[int, int], ...]
    """First and last number of each range of entries."""

    @property
    def text(self) -> str:
        """The signed text. Its first line is that of no checkpoint."""
        ranges = " ".join(f"{first}-{last}" for first, last in self.ranges)
        origins = f"{json.dumps(self.origins)}\n" if self.origins else ""
        return f"{BUNDLE}\n{self.origin}\n{self.size}\n{json.dumps(self.run_id)}\n{origins}{ranges}\n"

    @property
    def numbers(self) -> Iterator[int]:
        """The number of each entry."""
        return (number for first, last in self.ranges for number in range(first, last + 1))


def parse_contents(text: str, key: PublicKey, *, is_old: bool = False) -> Contents:
    """Return what a log holds of a run, once the key's signature holds. Raises CheckFailed."""
    body, separator, tail = text.partition("\n\n")
    lines = body.split("\n")
    if is_old:
        lines.insert(4, "[]")
    if not separator or len(lines) != 6 or not tail.endswith("\n"):
        raise CheckFailed("not signed contents: a format, origin, size, run, logs, entries, an empty line, signatures")
    try:
        run_id, origins = json.loads(lines[3]), tuple(json.loads(lines[4]))
        ranges = tuple(_range(one) for one in lines[5].split(" "))
        contents = Contents(lines[1], int(lines[2]), run_id, origins, ranges)
    except (ValueError, TypeError, RecursionError):
        raise CheckFailed("the signed contents are malformed") from None
    ends = [0, *(number for one in ranges for number in one)]
    is_ordered = all(first <= last for first, last in ranges) and ends[-1] <= contents.size
    if not is_ordered or any(ends[at] + 1 >= ends[at + 1] for at in range(2, len(ends) - 1, 2)) or ends[1] < 1:
        raise CheckFailed("the entries of the signed contents are out of order")
    is_one_of = is_old or (contents.origin in origins and all(isinstance(one, str) for one in origins))
    if not isinstance(run_id, str) or not is_one_of or contents.text != body + "\n":
        raise CheckFailed("the signed contents are not in their one spelling")
    signatures = tuple(_parse_signature(line) for line in tail[:-1].split("\n"))
    _check_signatures(contents.text, signatures, key, f"what {contents.origin} holds of the run")
    return contents


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if len(text) > 40:
        raise ValueError(text)
    return int(first), int(last)


def split_notes(text: str) -> Iterator[str]:
    """Yield the notes of a file of exported checkpoints: one after the other, an empty line between them."""
    body: list[str] = []
    signatures: list[str] = []
    for line in text.split("\n"):
        if line.startswith(_SIGNATURE) and body:
            signatures.append(line)
        elif line:
            if signatures:
                yield _joined(body, signatures)
                body, signatures = [], []
            body.append(line)
    if body or signatures:
        yield _joined(body, signatures)


def _joined(body: Sequence[str], signatures: Sequence[str]) -> str:
    return "\n".join([*body, "", *signatures, ""])


def _from_base64(text: str) -> bytes:
    try:
        raw = base64.b64decode(text, validate=True)
    except ValueError:
        raise CheckFailed(f"not base64: {text!r}") from None
    if base64.b64encode(raw).decode() != text:  # other spellings of the same bytes
        raise CheckFailed(f"not canonical base64: {text!r}")
    return raw


# Entries


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry of the log, read from its canonical bytes."""

    kind: str
    shard: int
    seq: int
    values: Mapping[str, Any]
    """By column."""


def parse_entry(text: bytes) -> TreeEntry:
    """Return an entry by its columns. Raises CheckFailed on anything that is none."""
    try:
        kind, version, shard, seq, *values = json.loads(text)
        columns = COLUMNS[kind, version]
        if len(columns) != len(values) or type(shard) is not int or type(seq) is not int:
            raise ValueError("other columns")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckFailed(f"not an entry of a known kind and version: {error}") from None
    return TreeEntry(kind, shard, seq, dict(zip(columns, values, strict=True)))


# Files


def check_file(lines: Iterable[str], keys: Sequence[PublicKey]) -> list[str]:
    """Check a proof or a bundle; returns what was proven, a sentence each.

    `keys` are whom the reader trusts. Without any, the key inside the file is taken: then the file agrees with
    itself, and the sentences name the key that it must be compared with.

    Raises:
        CheckFailed: something in it does not hold.
    """
    rest = iter(lines)
    first = next(rest, "")
    try:
        document = _read_object(first)
    except CheckFailed:  # a proof is one document, which may be indented
        document = _read_object(first + "".join(rest))
    checks: dict[object, Callable[[], list[str]]] = {
        PROOF: lambda: _check_proof(document, keys),
        CONSISTENCY: lambda: _check_consistency_file(document, keys),
        BUNDLE: lambda: _check_bundle(document, rest, keys),
    }
    check = checks.get(str(document.get("format")))
    version = document.get("version")
    is_old = document.get("format") == BUNDLE and version == OLD_BUNDLE
    if check is None or type(version) is not int or not (is_old or version == VERSIONS[document["format"]]):
        raise CheckFailed(f"format {document.get('format')!r}, version {version!r} is not known")
    return check()


def _check_proof(document: Mapping[str, Any], keys: Sequence[PublicKey]) -> list[str]:
    head, key = _head(document, "checkpoint", keys)
    entry = _check_entry(document, head)
    _only(document, "format", "version", "checkpoint", "key", *_members(entry))
    said = [f"entry {entry.seq} ({entry.kind}) is in the log {head.origin} of {_entries(head.size)}", _signed_by(key)]
    if entry.kind == "packet":
        _check_body(document, entry)
        said[1:1] = [*_told(entry, _from_base64(document["body"])), _hash_of(entry)]
    return said


def _hash_of(entry: TreeEntry) -> str:
    return f"its bytes have the hash {entry.values['stored_hash']}"


def _told(entry: TreeEntry, body: bytes) -> Iterator[str]:
    """Yield who sent what when, and the verdict: from the proven entry, and the body that has the entry's hash."""
    value = entry.values
    to = value["recipients"] if isinstance(value["recipients"], list) else []
    yield _cut(
        f"{value['packet_type']} {value['packet_id']} by {value['sender_agent_id']} to {', '.join(map(str, to))}"
    )
    yield _cut(f"session {value['session_id']}, run {value['run_id']}")
    code = f" ({value['refusal_code']})" if value["refusal_code"] else ""
    later = "; its final verdict is a later entry" if value["verdict"] == "held" else ""
    yield _cut(f"verdict at {value['judged_at']}: {value['verdict']}{code}{later}")
    yield f"payload: {_payload_of(body)}"


def _payload_of(body: bytes) -> str:
    """Return the payload as one line of JSON that is cut when it is long, or why it cannot be read."""
    if body.startswith(_SEALED):
        return "encrypted, readable with the subject's key only"
    try:
        payload = json.loads(body, object_pairs_hook=_each_once)["payload"]
        return _cut(json.dumps(payload, ensure_ascii=False, separators=(",", ":")))
    except (CheckFailed, ValueError, LookupError, TypeError, RecursionError):
        return "not readable: the body is no packet"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more characters)"


def _check_consistency_file(document: Mapping[str, Any], keys: Sequence[PublicKey]) -> list[str]:
    _only(document, "format", "version", "key", "old", "new", "path")
    old, key = _head(document, "old", keys)
    new, _ = _head(document, "new", keys)
    if old.origin != new.origin:
        raise CheckFailed(f"{old.origin} and {new.origin} are two logs")
    check_consistency((old.size, old.root), (new.size, new.root), _hashes(document, "path"))
    return [f"the log {new.origin} of {_entries(new.size)} extends that of {old.size}", _signed_by(key)]


def _check_bundle(header: Mapping[str, Any], lines: Iterator[str], keys: Sequence[PublicKey]) -> list[str]:
    _only(header, "format", "version", "run_id", "checkpoints", "contracts")
    run_id = _field(header, "run_id", str)
    heads: dict[str, Checkpoint] = {}
    awaited: dict[str, Iterator[int]] = {}
    origins: set[str] = set()
    said = []
    for item in _field(header, "checkpoints", list):
        head, key = _head(item, "checkpoint", keys)
        _only(item, "checkpoint", "key", "contents")
        if head.origin in heads:
            raise CheckFailed(f"two checkpoints of {head.origin} in the bundle")
        heads[head.origin] = head
        contents = _contents(item, head, key, run_id, is_old=header["version"] == OLD_BUNDLE)
        awaited[head.origin] = contents.numbers
        origins.update(contents.origins)
        said.append(f"{_signed_by(key)}: log {head.origin} of {_entries(head.size)}, which holds no more of the run")
    contracts = {_contract_hash(one) for one in _field(header, "contracts", list)}
    if len(contracts) != len(header["contracts"]):
        raise CheckFailed("a contract stands twice in the bundle")
    entries = packets = 0
    named: set[str] = set()
    for number, line in enumerate(lines, 2):
        item = _read_line(line, number)
        if "entries" in item:
            _check_logs(heads.keys(), origins)
            _end_bundle(item, lines, entries, awaited)
            if named != contracts:
                raise CheckFailed("a contract of the bundle is named by no packet")
            return [
                f"run {run_id}: {entries} entries, {packets} of them packets with their bytes, are in the log",
                *said,
                *([_OLD_SAYS] if header["version"] == OLD_BUNDLE else []),
            ]
        origin = _field(item, "origin", str)
        if origin not in heads:
            raise CheckFailed(f"an entry of {origin!r}, of which the bundle has no checkpoint")
        entry = _check_entry(item, heads[origin])
        _only(item, "origin", *_members(entry))
        _check_turn(entry, origin, next(awaited[origin], None))
        entries += 1
        if entry.kind == "packet":
            _check_packet(item, entry, run_id, contracts)
            named.add(entry.values["contract_hash"])
            packets += 1
    raise CheckFailed("the bundle ends before its last line")


def _check_logs(given: Set[str], origins: Set[str]) -> None:
    """Refuse a bundle without the checkpoint of a log that holds something of the run, as other contents say."""
    if not given:
        raise CheckFailed("the bundle has no checkpoint")
    for origin in sorted(origins - given):
        raise CheckFailed(f"the log {origin} holds entries of the run, and its checkpoint is missing in the bundle")


def _contents(item: Mapping[str, Any], head: Checkpoint, key: PublicKey, run_id: str, *, is_old: bool) -> Contents:
    contents = parse_contents(_field(item, "contents", str), key, is_old=is_old)
    if (contents.origin, contents.size, contents.run_id) != (head.origin, head.size, run_id):
        raise CheckFailed(
            f"the signed contents are not those of run {run_id!r} in {head.origin} of {head.size} entries"
        )
    return contents


def _check_turn(entry: TreeEntry, origin: str, awaited: int | None) -> None:
    if awaited is None or entry.seq < awaited:
        raise CheckFailed(
            f"entry {entry.seq} of {origin} stands twice in the bundle, out of order, or is not of the run"
        )
    if entry.seq > awaited:
        raise CheckFailed(f"entry {awaited} of {origin} is of the run and missing in the bundle")


def _members(entry: TreeEntry) -> tuple[str, ...]:
    return ("entry", "path", "body") if entry.kind == "packet" else ("entry", "path")


def _only(document: Mapping[str, Any], *members: str) -> None:
    """Refuse a member that the format does not know, and one that is missing."""
    for name in sorted(document.keys() ^ set(members)):
        raise CheckFailed(f"{name} is missing" if name in members else f"{name!r} is not known to this format")


def _check_packet(item: Mapping[str, Any], entry: TreeEntry, run_id: str, contracts: set[str]) -> None:
    _check_body(item, entry)
    if entry.values["run_id"] != run_id:
        raise CheckFailed(f"entry {entry.seq} is of run {entry.values['run_id']!r}")
    if entry.values["contract_hash"] not in contracts:
        raise CheckFailed(f"entry {entry.seq} was judged by a contract that is not in the bundle")


def _end_bundle(
    end: Mapping[str, Any], rest: Iterator[str], entries: int, awaited: Mapping[str, Iterator[int]]
) -> None:
    _only(end, "entries")
    for origin, numbers in awaited.items():
        missing = next(numbers, None)
        if missing is not None:
            raise CheckFailed(f"entry {missing} of {origin} is of the run and missing in the bundle")
    if type(end["entries"]) is not int or end["entries"] != entries or any(line.strip() for line in rest):
        raise CheckFailed(f"the bundle says that it has {end['entries']} entries and holds {entries}")


def _check_entry(item: Mapping[str, Any], head: Checkpoint) -> TreeEntry:
    text = _field(item, "entry", str).encode()
    entry = parse_entry(text)
    if head.origin.rpartition("/")[2] != str(entry.shard):
        raise CheckFailed(f"an entry of shard {entry.shard} in the log {head.origin}")
    if root_by_inclusion(entry.seq - 1, head.size, leaf_hash(text), _hashes(item, "path")) != head.root:
        raise CheckFailed(f"entry {entry.seq} is not in the log of {head.size} entries")
    return entry


def _check_body(item: Mapping[str, Any], entry: TreeEntry) -> None:
    body = _from_base64(_field(item, "body", str))
    if entry.kind != "packet" or sha256(body).hexdigest() != entry.values["stored_hash"]:
        raise CheckFailed(f"the bytes beside entry {entry.seq} are not those that it was made of")


def _head(document: Any, name: str, keys: Sequence[PublicKey]) -> tuple[Checkpoint, PublicKey]:
    if not isinstance(document, dict):
        raise CheckFailed("a checkpoint in the bundle is no object")
    note = parse_note(_field(document, name, str))
    inside = parse_key(_field(document, "key", str))
    known = [key for key in keys if key.name == note.checkpoint.origin]
    if keys and not known:
        raise CheckFailed(f"no key of {note.checkpoint.origin!r} was given")
    key = known[0] if known else inside
    return note.check(key), key


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _signed_by(key: PublicKey) -> str:
    return f"signed by {key}"


def _contract_hash(contract: object) -> str:
    """Hash of a contract as the entries name it: it travels as the canonical text that was hashed."""
    if not isinstance(contract, str):
        raise CheckFailed("a contract in the bundle is not a text")
    return sha256(_utf8(contract, "a contract in the bundle")).hexdigest()


def _utf8(text: str, what: str) -> bytes:
    """Return the text in UTF-8. JSON can write half a character (`"\\ud800"`), which has none."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CheckFailed(f"{what} holds half a character") from None


def _hashes(document: Mapping[str, Any], name: str) -> list[bytes]:
    texts = _field(document, name, list)
    if not all(isinstance(text, str) and len(text) == 64 and not set(text) - set("0123456789abcdef") for text in texts):
        raise CheckFailed(f"{name} is not a list of hashes")
    return [bytes.fromhex(text) for text in texts]


def _field(document: Mapping[str, Any], name: str, kind: type) -> Any:
    value = document.get(name)
    if not isinstance(value, kind):
        raise CheckFailed(f"{name} is missing, or no {kind.__name__}")
    if isinstance(value, str):
        _utf8(value, name)
    return value


def _read_line(text: str, number: int) -> dict[str, Any]:
    """Return what a line of a bundle holds. Raises CheckFailed with the line's number in the file."""
    try:
        return _read_object(text)
    except CheckFailed as error:
        if not text.endswith("\n"):
            raise CheckFailed(f"line {number}: the file was cut off here, or is no bundle to its end") from None
        raise CheckFailed(f"line {number}: {error}") from None


def _read_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        raise CheckFailed(f"not JSON: {error.msg}, at character {error.pos + 1}") from None
    except (ValueError, RecursionError) as error:
        raise CheckFailed(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise CheckFailed("not a JSON object")
    return document


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(members)
    if len(document) != len(members):
        raise CheckFailed("a member appears twice in one object")
    return document


# The command


def read_keys(text: str) -> list[PublicKey]:
    """Read keys, one per line; skip empty lines and lines with `#`. Raises CheckFailed."""
    lines = (line.strip() for line in text.splitlines())
    return [parse_key(line) for line in lines if line and not line.startswith("#")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0 = all holds, 1 = not, 2 = a file cannot be read, 3 = as far as an old bundle shows."""
    parser = argparse.ArgumentParser(description="Check a proof or an exported bundle of the log.")
    parser.add_argument("file", help="what `apc log prove`, `consistency` or `export` wrote")
    parser.add_argument("--key", action="append", default=[], help="public key, or a file with keys; may be repeated")
    parser.add_argument("--no-key", action="store_true", help="only check that the file agrees with itself")
    options = parser.parse_args(arguments)
    if bool(options.key) is options.no_key:
        print("give the key that you trust with --key, or --no-key to check without one", file=sys.stderr)
        return 2
    try:
        keys = [key for text in options.key for key in keys_of(text)]
    except CheckFailed as error:
        print(f"--key {_shown(str(error))}", file=sys.stderr)
        return 2
    try:
        with open(options.file, encoding="utf-8") as file:
            sentences = check_file(file, keys)
        for sentence in sentences:
            print(_shown(sentence), file=sys.stderr if sentence == _OLD_SAYS else sys.stdout)
    except CheckFailed as error:
        print(f"NOT PROVEN: {_shown(str(error))}", file=sys.stderr)
        return 1
    except (OSError, UnicodeError) as error:
        print(f"cannot read {_shown(options.file)}: {_reason(error)}", file=sys.stderr)
        return 2
    if not keys:
        print("no key was given: compare the key above with the one that the log's owner publishes")
    return 3 if _OLD_SAYS in sentences else 0


def _shown(text: str) -> str:
    """Return the text without characters that act on a terminal: the file may be anybody's."""
    return "".join(character if character.isprintable() else "?" for character in text)


def keys_of(text: str) -> list[PublicKey]:
    """Return the key that the text is, or those of the file that it names. Raises CheckFailed."""
    if text.count("+") >= 2:
        return [parse_key(text)]
    try:
        with open(text, encoding="utf-8") as file:
            keys = read_keys(file.read())
    except FileNotFoundError:
        raise CheckFailed(f"{text!r} is neither a public key as `apc log key` prints it nor a file of them") from None
    except (OSError, UnicodeError) as error:
        raise CheckFailed(f"{text}: {_reason(error)}") from None
    except CheckFailed as error:
        raise CheckFailed(f"{text}: {error}") from None
    if not keys:
        raise CheckFailed(f"{text}: the file holds no key")
    return keys


def _reason(error: OSError | UnicodeError) -> str:
    """Return why a file cannot be read, without its name."""
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"


if __name__ == "__main__":
    sys.exit(main())
