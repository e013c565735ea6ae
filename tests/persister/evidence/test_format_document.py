"""docs/log-format.md says what is so: its columns, and its test vectors."""

import json
import re
from pathlib import Path

import rfc8785
from tests.persister.evidence import independent_verifier

from apc_bus.settings import PersisterSettings
from apc_persister.check import (
    COLUMNS,
    Note,
    leaf_hash,
    node_hash,
    parse_entry,
    parse_key,
    parse_note,
    root_by_inclusion,
)
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.coverage import UNCOVERED
from apc_persister.evidence.entries import KINDS
from apc_persister.evidence.merkle import Tree

DOCUMENT = (Path(__file__).parents[3] / "docs" / "log-format.md").read_text(encoding="utf-8")
VECTORS = re.search(r"```vectors\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_columns() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\w+) \| ([\w ]+) \|$", DOCUMENT, re.MULTILINE)
    documented = {(kind, int(version)): tuple(columns.split()) for kind, version, _, columns in rows}
    assert documented == COLUMNS
    assert {kind: table for kind, _, table, _ in rows} == KINDS
    assert {key: len(columns) + 4 for key, columns in COLUMNS.items()} == independent_verifier.WIDTHS


def test_what_is_not_covered() -> None:
    assert dict(re.findall(r"^\| `(\w+\.[\w*]+)` \| (.+) \|$", DOCUMENT, re.MULTILINE)) == UNCOVERED


def test_the_vectors() -> None:
    assert VECTORS is not None
    lines = VECTORS[1].split("\n")
    entries, hashes = lines[0:6:2], [bytes.fromhex(line) for line in lines[1:6:2]]
    pair, root = map(bytes.fromhex, lines[6:8])
    for seq, (entry, leaf) in enumerate(zip(entries, hashes, strict=True), 1):
        assert leaf_hash(entry.encode()) == leaf
        assert rfc8785.dumps(json.loads(entry)) == entry.encode()
        assert parse_entry(entry.encode()).seq == seq
    assert node_hash(*hashes[:2]) == pair
    assert node_hash(pair, hashes[2]) == Tree().extend(hashes)[0].root == root
    assert root_by_inclusion(0, 3, hashes[0], hashes[1:]) == root
    assert independent_verifier.root_of(0, 3, hashes[0], hashes[1:]) == root
    signer = load_signer(PersisterSettings())
    assert lines[8] == str(signer.public_key(0))
    note = "\n".join(lines[9:])
    assert note == signer.sign(0, 3, root)
    read: Note = parse_note(note)
    assert read.check(parse_key(lines[8])).root == root
    proof = {"checkpoint": note, "key": lines[8], "entry": entries[1], "path": [leaf.hex() for leaf in hashes[::2]]}
    independent_verifier.verify(json.dumps({"format": "apc-log-proof", "version": 1, **proof}), [lines[8]])
