"""A second verifier, written from docs/reference/log-format.md, RFC 6962 and C2SP signed-note alone: it imports nothing
of ours.

Where `apc_log.offline_verifier` walks a path from the leaf up (RFC 9162), this one follows the recursive definitions of
RFC 6962 section 2.1. Every function raises Refused, or returns.
"""

import base64
import hashlib
import json
import re
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

NOTE = re.compile(
    r"(?P<text>(?P<origin>[^\n]+)\n(?P<size>0|[1-9][0-9]{0,15})\n(?P<root>[A-Za-z0-9+/]{43}=)\n)\n"
    r"(?P<signatures>(?:— [^ \n]+ [A-Za-z0-9+/]+={0,2}\n)+)"
)
CONTENTS = re.compile(
    r"(?P<text>apc-log-bundle\n(?P<origin>[^\n]+)\n(?P<size>[1-9][0-9]{0,15})\n(?P<run>[^\n]+)\n(?P<logs>[^\n]+)\n"
    r"(?P<ranges>[1-9][0-9]*-[1-9][0-9]*(?: [1-9][0-9]*-[1-9][0-9]*)*)\n)\n"
    r"(?P<signatures>(?:— [^ \n]+ [A-Za-z0-9+/]+={0,2}\n)+)"
)
HASH = re.compile(r"[0-9a-f]{64}")
# docs/reference/log-format.md, table of kinds: number of elements of an entry, by kind and version.
WIDTHS = {
    ("packet", 1): 37,
    ("hop", 1): 17,
    ("lineage", 1): 18,
    ("coordination", 1): 16,
    ("conflict", 1): 16,
    ("registry", 1): 10,
    ("log", 1): 10,
}
RUN_ID, CONTRACT_HASH, STORED_HASH = 12, 31, 33
"""Where they stand in an entry of kind packet, counted from 0."""


class Refused(Exception):
    """It is not proven."""


def refuse_unless(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


def from_base64(text: object) -> bytes:
    refuse_unless(isinstance(text, str), "base64 is a text")
    try:
        raw = base64.b64decode(str(text), validate=True)
    except ValueError:
        raise Refused("base64") from None
    refuse_unless(base64.b64encode(raw).decode() == text, "one spelling only")
    return raw


def from_hex(text: object) -> bytes:
    refuse_unless(isinstance(text, str) and HASH.fullmatch(text), "a hash is 64 lower-case hex digits")
    return bytes.fromhex(str(text))


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    refuse_unless(len({name for name, _ in pairs}) == len(pairs), "each member once")
    return dict(pairs)


def members(document: dict[str, Any], *names: str) -> None:
    refuse_unless(set(document) == set(names), "these members and no other")


def from_json(text: str) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(text, object_pairs_hook=each_once)
    except ValueError:
        raise Refused("JSON") from None
    refuse_unless(isinstance(value, dict), "an object")
    return value


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def power_below(size: int) -> int:
    power = 1
    while power * 2 < size:
        power *= 2
    return power


def root_of(index: int, size: int, leaf: bytes, path: list[bytes]) -> bytes:
    """Section 2.1.1 read backwards: PATH(m, D[n]) ends with the sibling that is nearest to the root."""
    if size == 1:
        refuse_unless(not path, "the path is too long")
        return leaf
    refuse_unless(path, "the path is too short")
    k = power_below(size)
    if index < k:
        return node(root_of(index, k, leaf, path[:-1]), path[-1])
    return node(path[-1], root_of(index - k, size - k, leaf, path[:-1]))


def roots_of(old: int, new: int, is_whole: bool, old_root: bytes, path: list[bytes]) -> tuple[bytes, bytes]:
    """Section 2.1.2 read backwards: SUBPROOF(m, D[n], b)."""
    if old == new:
        refuse_unless(len(path) == (0 if is_whole else 1), "length of the path")
        return (old_root, old_root) if is_whole else (path[0], path[0])
    refuse_unless(path, "the path is too short")
    k = power_below(new)
    if old <= k:
        first, second = roots_of(old, k, is_whole, old_root, path[:-1])
        return first, node(second, path[-1])
    first, second = roots_of(old - k, new - k, False, old_root, path[:-1])
    return node(path[-1], first), node(path[-1], second)


def read_key(text: object) -> tuple[str, bytes]:
    """signed-note: `name+<8 hex>+base64(0x01 || key)`."""
    refuse_unless(isinstance(text, str), "a key is a text")
    name, _, rest = str(text).partition("+")
    key_id, _, encoded = rest.partition("+")
    raw = from_base64(encoded)
    refuse_unless(len(raw) == 33 and raw[0] == 1, "an Ed25519 key")
    refuse_unless(hashlib.sha256(name.encode() + b"\n" + raw).hexdigest()[:8] == key_id, "the id of the key")
    return name, raw[1:]


def read_head(document: dict[str, Any], field: str, trusted: dict[str, bytes]) -> tuple[str, int, bytes]:
    """Origin, size and root of a signed checkpoint."""
    read_key(document.get("key"))
    text = document.get(field)
    note = NOTE.fullmatch(text) if isinstance(text, str) else None
    refuse_unless(note, "a note")
    assert note is not None
    origin = note["origin"]
    refuse_unless(origin in trusted, "nobody we trust signed it")
    check_signatures(note["text"], note["signatures"], origin, trusted[origin])
    root = from_base64(note["root"])
    refuse_unless(len(root) == 32 and int(note["size"]) <= 2**53, "root or size")
    return origin, int(note["size"]), root


def check_signatures(text: str, signatures: str, name: str, key: bytes) -> None:
    key_id = hashlib.sha256(name.encode() + b"\n\x01" + key).digest()[:4]
    signed = False
    for line in signatures.splitlines():
        _, signer, encoded = line.split(" ")
        blob = from_base64(encoded)
        if signer == name and blob[:4] == key_id:
            try:
                Ed25519PublicKey.from_public_bytes(key).verify(blob[4:], text.encode())
            except InvalidSignature:
                raise Refused("the signature") from None
            signed = True
    refuse_unless(signed, "no signature of ours")


def read_contents(note: object, head: tuple[str, int, bytes], run_id: str, key: bytes) -> tuple[list[int], list[str]]:
    """Return the numbers of all entries of the run in this log, and all logs that hold some."""
    match = CONTENTS.fullmatch(note) if isinstance(note, str) else None
    refuse_unless(match, "the contents")
    assert match is not None
    check_signatures(match["text"], match["signatures"], head[0], key)
    refuse_unless((match["origin"], int(match["size"])) == head[:2], "contents of another log or size")
    refuse_unless(match["run"] == json.dumps(run_id), "contents of another run")
    numbers: list[int] = []
    for stretch in match["ranges"].split(" "):
        first, last = map(int, stretch.split("-"))
        refuse_unless(first <= last <= head[1] and (not numbers or first > numbers[-1] + 1), "stretches in order")
        numbers += range(first, last + 1)
    logs: list[str] = from_json(f'{{"logs": {match["logs"]}}}')["logs"]
    is_list = isinstance(logs, list) and all(isinstance(one, str) for one in logs)
    refuse_unless(is_list and head[0] in logs and json.dumps(logs) == match["logs"], "the logs of the run")
    return numbers, logs


def read_path(document: dict[str, Any]) -> list[bytes]:
    path = document.get("path")
    refuse_unless(isinstance(path, list), "a path is a list")
    return [from_hex(step) for step in path or []]


def check_entry(item: dict[str, Any], head: tuple[str, int, bytes]) -> list[Any]:
    """Return the entry as a list, once it is proven to be in the log."""
    origin, size, root = head
    text = item.get("entry")
    refuse_unless(isinstance(text, str), "an entry is a text")
    try:
        entry: list[Any] = json.loads(str(text))
    except ValueError:
        raise Refused("the entry") from None
    refuse_unless(isinstance(entry, list) and len(entry) > 4, "an entry is a list")
    refuse_unless(type(entry[1]) is int and isinstance(entry[0], str), "kind and version")
    refuse_unless(WIDTHS.get((entry[0], entry[1])) == len(entry), "kind, version and number of columns")
    shard, seq = entry[2], entry[3]
    refuse_unless(type(shard) is int and type(seq) is int and 1 <= seq <= size, "shard and seq")
    refuse_unless(origin.endswith(f"/{shard}"), "another shard")
    leaf = hashlib.sha256(b"\x00" + str(text).encode()).digest()
    refuse_unless(root_of(seq - 1, size, leaf, read_path(item)) == root, "the root")
    return entry


def check_body(item: dict[str, Any], entry: list[Any]) -> None:
    refuse_unless(entry[0] == "packet", "bytes beside an entry that has none")
    refuse_unless(hashlib.sha256(from_base64(item.get("body"))).hexdigest() == entry[STORED_HASH], "the bytes")


def verify(text: str, keys: list[str]) -> None:
    """Verify a proof, a consistency proof or a bundle. Raises Refused."""
    trusted = dict(read_key(key) for key in keys)
    first, _, rest = text.partition("\n")
    try:
        document = from_json(first)
    except Refused:
        document, rest = from_json(text), ""
    version = 3 if document.get("format") == "apc-log-bundle" else 1
    refuse_unless(type(document.get("version")) is int and document["version"] == version, "version")
    if document.get("format") == "apc-log-proof":
        entry = check_entry(document, read_head(document, "checkpoint", trusted))
        body = ("body",) if entry[0] == "packet" else ()
        members(document, "format", "version", "checkpoint", "key", "entry", "path", *body)
        if body:
            check_body(document, entry)
    elif document.get("format") == "apc-log-consistency":
        members(document, "format", "version", "key", "old", "new", "path")
        one, old, old_root = read_head(document, "old", trusted)
        other, new, new_root = read_head(document, "new", trusted)
        refuse_unless(one == other and 0 < old <= new, "one log, growing")
        refuse_unless(roots_of(old, new, True, old_root, read_path(document)) == (old_root, new_root), "the roots")
    else:
        refuse_unless(document.get("format") == "apc-log-bundle", "a known format")
        verify_bundle(document, rest, trusted)


def verify_bundle(header: dict[str, Any], rest: str, trusted: dict[str, bytes]) -> None:
    members(header, "format", "version", "run_id", "checkpoints", "contracts")
    refuse_unless(isinstance(header.get("run_id"), str), "run_id")
    refuse_unless(isinstance(header.get("checkpoints"), list), "checkpoints")
    refuse_unless(isinstance(header.get("contracts"), list), "contracts")
    refuse_unless(all(isinstance(one, dict) for one in header["checkpoints"]), "checkpoints")
    heads = {}
    awaited: dict[str, list[int]] = {}
    named_logs: set[str] = set()
    for item in header["checkpoints"]:
        head = read_head(item, "checkpoint", trusted)
        members(item, "checkpoint", "key", "contents")
        refuse_unless(head[0] not in heads, "one checkpoint a log")
        heads[head[0]] = head
        awaited[head[0]], logs = read_contents(item["contents"], head, header["run_id"], trusted[head[0]])
        named_logs.update(logs)
    refuse_unless(heads and named_logs <= heads.keys(), "the checkpoint of each log of the run")
    refuse_unless(all(isinstance(one, str) for one in header["contracts"]), "contracts")
    contracts = {hashlib.sha256(one.encode()).hexdigest() for one in header["contracts"]}
    refuse_unless(len(contracts) == len(header["contracts"]), "each contract once")
    lines = rest.removesuffix("\n").split("\n")
    found: dict[str, list[int]] = {origin: [] for origin in heads}
    named = set()
    for line in lines[:-1]:
        item = from_json(line)
        refuse_unless(isinstance(item.get("origin"), str) and item["origin"] in heads, "origin")
        entry = check_entry(item, heads[item["origin"]])
        found[item["origin"]].append(entry[3])
        members(item, "origin", "entry", "path", *(("body",) if entry[0] == "packet" else ()))
        if entry[0] == "packet":
            check_body(item, entry)
            refuse_unless(entry[RUN_ID] == header["run_id"], "of another run")
            named.add(entry[CONTRACT_HASH])
    refuse_unless(named == contracts, "the contracts that packets name")
    refuse_unless(found == awaited, "all entries in order, each once")
    end = from_json(lines[-1])
    members(end, "entries")
    refuse_unless(type(end.get("entries")) is int and end["entries"] == len(lines) - 1, "the number of entries")
