"""docs/reference/log-format.md and database.md describe the columns, the entries and the test vectors as they are."""

import json
import re
from pathlib import Path

import asyncpg
import rfc8785
from tests.persister.evidence import independent_verifier

import apc_log.session_loading
from apc_bus.settings import PersisterSettings
from apc_log.entries import BYTES_COLUMN, KINDS
from apc_log.merkle import Tree
from apc_log.offline_verifier import (
    COLUMNS,
    SignedNote,
    leaf_hash,
    node_hash,
    parse_entry,
    parse_key,
    parse_note,
    root_by_inclusion,
)
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.findings import UNCOVERED

REFERENCE = Path(__file__).parents[3] / "docs/reference"
DOCUMENT = (REFERENCE / "log-format.md").read_text(encoding="utf-8")
DATABASE = (REFERENCE / "database.md").read_text(encoding="utf-8")
SCHEMA = """
SELECT relname, attname, replace(format_type(atttypid, atttypmod), 'timestamp with time zone', 'timestamptz')
       || CASE WHEN attnotnull THEN '' ELSE '?' END
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND attnum > 0 AND NOT attisdropped
"""
COLUMN = re.compile(r"^\| `(\w+)` \| ([^|]+) \| (yes|hash|no) \| [^|]+ \|$", re.MULTILINE)
VECTORS = re.search(r"```vectors\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_columns() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\w+) \| ([\w ]+) \|$", DOCUMENT, re.MULTILINE)
    documented = {(kind, int(version)): tuple(columns.split()) for kind, version, _, columns in rows}
    assert documented == COLUMNS
    assert {kind: table for kind, _, table, _ in rows} == KINDS
    assert {key: len(columns) + 4 for key, columns in COLUMNS.items()} == independent_verifier.WIDTHS


def documented_schema() -> dict[str, dict[str, tuple[str, str]]]:
    """table -> column -> its type and what the tree has of it."""
    schema = DATABASE.partition("## Schema `apc_log`\n")[2].partition("### Metadata of hops")[0]
    return {
        table: {column: (kind, tree) for column, kind, tree in COLUMN.findall(rows)}
        for table, rows in re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", schema, re.MULTILINE | re.DOTALL)
    }


async def test_every_column_of_every_table(pool: asyncpg.Pool) -> None:
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in await pool.fetch(SCHEMA):
        found.setdefault(table, {})[column] = kind
    documented = documented_schema()
    assert {
        table: {name: kind for name, (kind, _) in columns.items()} for table, columns in documented.items()
    } == found


async def test_every_column_of_the_tables_of_agents(pool: asyncpg.Pool) -> None:
    found: dict[str, dict[str, str]] = {}
    for table, column, kind in await pool.fetch(SCHEMA.replace("'apc_log'", "'apc_app'")):
        found.setdefault(table, {})[column] = kind
    row = re.compile(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
    assert _tables_of("## Schema `apc_app`", "## Views", row) == found


async def test_every_view(pool: asyncpg.Pool) -> None:
    views = DATABASE.partition("## Views\n")[2]
    found = await pool.fetch("SELECT viewname FROM pg_views WHERE schemaname = 'apc_log'")
    assert set(re.findall(r"^\| `(\w+)` \|", views, re.MULTILINE)) == {view for (view,) in found}


def _tables_of(first: str, last: str, row: re.Pattern[str]) -> dict[str, dict[str, str]]:
    part = DATABASE.partition(first)[2].partition(last)[0]
    tables = re.findall(r"^### `(\w+)`\n(.*?)(?=^### |\Z)", part, re.MULTILINE | re.DOTALL)
    return {table: dict(row.findall(rows)) for table, rows in tables}


def test_what_the_tree_has_of_every_column() -> None:
    documented = documented_schema()
    for (kind, _), columns in COLUMNS.items():
        table = KINDS[kind]
        in_tree = {name for name, (_, tree) in documented[table].items() if tree == "yes"}
        assert in_tree == {"shard", "seq", "entry_version", *columns} - {"raw_hash"}
        hashed = [name for name, (_, tree) in documented[table].items() if tree == "hash"]
        assert hashed == ([BYTES_COLUMN[kind][0]] if kind in BYTES_COLUMN else [])
    for table in documented.keys() - set(KINDS.values()):
        assert {tree for _, tree in documented[table].values()} == {"no"}


def test_the_metadata_of_hops() -> None:
    """Every member that the page speaks of, or that a gate reads when it takes a shard, is described."""
    described = set(re.findall(r"^\| metadata\.`(\w+)` \|", DATABASE, re.MULTILINE))
    assert set(re.findall(r"`metadata\.(\w+)`", DOCUMENT)) <= described
    loading = Path(apc_log.session_loading.__file__).read_text(encoding="utf-8")
    read = set(re.findall(r"metadata (?:->|->>|\?) '(\w+)'", loading))
    read |= set(re.findall(r"metadata #>> '{(\w+)", loading))
    assert read and read <= described


def test_what_is_not_covered() -> None:
    section = DOCUMENT.partition("## Verification\n")[2]
    assert dict(re.findall(r"^\| `(\w+\.[\w*]+)` \| (.+) \|$", section, re.MULTILINE)) == UNCOVERED


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
    signer = load_signer(PersisterSettings(log_name="apc-log"))
    assert lines[8] == str(signer.public_key(0))
    note = "\n".join(lines[9:])
    assert note == signer.sign(0, 3, root)
    read: SignedNote = parse_note(note)
    assert read.check(parse_key(lines[8])).root == root
    proof = {"checkpoint": note, "key": lines[8], "entry": entries[1], "path": [leaf.hex() for leaf in hashes[::2]]}
    independent_verifier.verify(json.dumps({"format": "apc-log-proof", "version": 1, **proof}), [lines[8]])
