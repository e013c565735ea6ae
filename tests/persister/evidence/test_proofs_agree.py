"""Two verifiers that share no code agree on every proof and every bundle, and both refuse every altered one."""

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.persister.evidence import independent_verifier
from tests.persister.evidence.conftest import CONTRACT, WrittenLog
from tests.support.log import disable_guards

from apc_log import offline_verifier
from apc_persister.errors import ProofImpossible, TreeBroken
from apc_persister.evidence.documents import bundle_lines, find_packet, prove_consistency, prove_entry


@pytest.fixture
async def documents(written: WrittenLog) -> tuple[list[str], str]:
    """Texts, and the key of the log."""
    return await documents_of(written), str(written.signer.public_key(0))


async def documents_of(written: WrittenLog) -> list[str]:
    """Proofs of entries of every kind and place, of consistency, and the bundle of a run."""
    key = written.signer.public_key(0)
    async with written.pool.acquire() as connection:
        entries = [await prove_entry(connection, key, 0, seq) for seq in (1, 2, 201, 202, 256, 257, 303, 512, 606)]
        growth = [
            await prove_consistency(connection, key, 0, old, new) for old, new in ((202, 404), (202, 606), (606, 606))
        ]
        made = bundle_lines(connection, "run-2", written.signer, [CONTRACT])
        bundle = [line.decode() async for line in made]
    return [*(json.dumps(one) for one in entries + growth), "\n".join(bundle) + "\n"]


def verdicts(text: str, key: str) -> tuple[bool, bool]:
    """Return what each verifier says."""
    try:
        offline_verifier.check_file(iter(text.splitlines(keepends=True)), [offline_verifier.parse_key(key)])
        ours = True
    except offline_verifier.CheckFailed:
        ours = False
    try:
        independent_verifier.verify(text, [key])
        theirs = True
    except independent_verifier.Refused:
        theirs = False
    return ours, theirs


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


def altered(document: Any, place: tuple[Any, ...], how: int) -> Any:
    """Return the document with one change at a place: a character, a number, a missing or doubled part."""
    document = copy.deepcopy(document)
    parent = document
    for name in place[:-1]:
        parent = parent[name]
    value = parent[place[-1]]
    match value:
        case str() if value and how % 3:
            at = how % len(value)
            other = chr(ord(value[at]) ^ 1)
            parent[place[-1]] = value[:at] + other + value[at + 1 :]
        case bool() | int():
            parent[place[-1]] = (value + 1, str(value), float(value) + 0.5, True)[how % 4]
        case list() if value and how % 2:
            value.insert(0, value[0])
        case _ if how % 5 == 0:
            parent[place[-1]] = None
        case _:
            del parent[place[-1]]
    return document


def test_a_bundle_and_proofs(documents: tuple[list[str], str]) -> None:
    texts, key = documents
    for text in texts:
        assert verdicts(text, key) == (True, True), text


def test_every_altered_proof_is_refused_by_both(documents: tuple[list[str], str]) -> None:
    texts, key = documents
    numbers = st.integers(0, 1 << 20)

    @settings(max_examples=400, deadline=None)
    @given(which=numbers, line=numbers | st.just(0), place=numbers, how=numbers)
    def refuse(which: int, line: int, place: int, how: int) -> None:
        lines = texts[which % len(texts)].splitlines()
        at = line % len(lines)
        document = json.loads(lines[at])
        where = list(places(document))
        other = altered(document, where[place % len(where)], how)
        lines[at] = json.dumps(other)
        if lines[at] == json.dumps(document):
            return
        assert verdicts("\n".join(lines) + "\n", key) == (False, False), lines[at]

    refuse()


def test_a_bundle_with_other_lines_is_refused_by_both(documents: tuple[list[str], str]) -> None:
    texts, key = documents
    lines = texts[-1].splitlines(keepends=True)
    middle = len(lines) // 2
    for other in (
        lines[:-1],
        lines[1:],
        [*lines[:middle], *lines[middle + 1 :]],
        [*lines[:middle], lines[middle], *lines[middle:]],
        [*lines[:middle], lines[middle + 1], lines[middle], *lines[middle + 2 :]],
        [*lines, lines[-1]],
    ):
        assert verdicts("".join(other), key) == (False, False)


def test_a_bundle_lacks_nothing(documents: tuple[list[str], str]) -> None:
    """Entries dropped, the tail cut, the count mended: the signed contents name what is missing."""
    texts, key = documents
    header, *entries, _ = texts[-1].splitlines()
    for left in (entries[1:], entries[:60] + entries[61:], entries[:-1], entries[:20], []):
        text = "\n".join([header, *left, json.dumps({"entries": len(left)})]) + "\n"
        assert verdicts(text, key) == (False, False)
        with pytest.raises(offline_verifier.CheckFailed, match="is of the run and missing in the bundle"):
            offline_verifier.check_file(iter(text.splitlines(keepends=True)), [offline_verifier.parse_key(key)])


@pytest.mark.parametrize(
    ("old", "new"), [("203-", "204-"), ("203-404", "203-300 302-404"), ("203-404", "203-403"), ('"run-2"', '"run-1"')]
)
def test_other_contents_are_refused_by_both(documents: tuple[list[str], str], old: str, new: str) -> None:
    texts, key = documents
    header, *rest = texts[-1].splitlines()
    document = json.loads(header)
    [head] = document["checkpoints"]
    head["contents"] = head["contents"].replace(old, new)
    assert head["contents"] != json.loads(header)["checkpoints"][0]["contents"]
    assert verdicts("\n".join([json.dumps(document), *rest]) + "\n", key) == (False, False)


def test_members_that_are_unknown_missing_or_doubled_are_refused(documents: tuple[list[str], str]) -> None:
    texts, key = documents
    for text in texts:
        lines = text.splitlines()
        for at in {0, 1, len(lines) - 1} & set(range(len(lines))):
            document = json.loads(lines[at])
            others = [{**document, "more": 1}, *({k: v for k, v in document.items() if k != name} for name in document)]
            spelled = [json.dumps(other) for other in others]
            name = next(iter(document))
            spelled.append(f'{{"{name}": {json.dumps(document[name])}, {json.dumps(document)[1:]}')
            for line in spelled:
                assert verdicts("\n".join([*lines[:at], line, *lines[at + 1 :]]) + "\n", key) == (False, False), line


async def test_nothing_of_a_tampered_log_is_exported(written: WrittenLog) -> None:
    await disable_guards(written.pool)
    for act in (
        "UPDATE apc_log.agent_packets SET run_id = 'run-1' WHERE seq = 203",
        "DELETE FROM apc_log.packet_events WHERE seq = 204",
        "UPDATE apc_log.coordination_events SET event = 'x' WHERE seq = 606",
    ):
        async with written.pool.acquire() as connection:
            transaction = connection.transaction(isolation="repeatable_read")
            await transaction.start()
            await connection.execute(act)
            with pytest.raises(TreeBroken, match="nothing is exported of it"):
                await anext(bundle_lines(connection, "run-2", written.signer, [CONTRACT]))
            await transaction.rollback()


async def test_an_entry_that_was_changed_is_not_proven(written: WrittenLog) -> None:
    await disable_guards(written.pool)
    await written.pool.execute("UPDATE apc_log.packet_events SET actor = 'x' WHERE seq = 204")
    async with written.pool.acquire() as connection:
        with pytest.raises(TreeBroken, match="entry 204 does not fit the signed checkpoint of 606"):
            await prove_entry(connection, written.signer.public_key(0), 0, 204)


def test_another_key_is_refused_by_both(documents: tuple[list[str], str]) -> None:
    texts, key = documents
    other = offline_verifier.PublicKey(offline_verifier.parse_key(key).name, b"k" * 32)
    for text in texts:
        assert verdicts(text, str(other)) == (False, False)


def test_the_checker_runs_alone(documents: tuple[list[str], str], tmp_path: Path) -> None:
    """Copied to an empty folder, in an interpreter that finds the standard library and cryptography only."""
    texts, key = documents
    (tmp_path / "offline_verifier.py").write_bytes(Path(offline_verifier.__file__).read_bytes())
    (tmp_path / "bundle").write_text(texts[-1], encoding="utf-8")
    alone = """
import importlib.abc, runpy, sys
ALLOWED = {"cryptography", "cffi", "_cffi_backend", "pycparser"} | set(sys.stdlib_module_names)
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ALLOWED:
            raise ImportError(f"{name} is neither the standard library nor cryptography")
sys.meta_path.insert(0, Refuse())
sys.argv = ["offline_verifier.py", *sys.argv[1:]]
runpy.run_path("offline_verifier.py", run_name="__main__")
"""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", alone, *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    good = run("bundle", "--key", key)
    assert good.returncode == 0, good.stderr
    assert "run run-2: 202 entries, 51 of them packets with their bytes, are in the log" in good.stdout
    assert "no key was given" in run("bundle", "--no-key").stdout
    assert run("bundle").returncode == run("bundle", "--key", key, "--no-key").returncode == 2
    (tmp_path / "bundle").write_text(texts[-1].replace("ROUTED", "APPLIED"), encoding="utf-8")
    bad = run("bundle", "--key", key)
    assert bad.returncode == 1 and "NOT PROVEN: entry 204 is not in the log" in bad.stderr
    assert run("nothing", "--no-key").returncode == 2


async def test_what_cannot_be_proven(written: WrittenLog) -> None:
    from uuid import uuid4

    key = written.signer.public_key(0)
    packet_id = await written.pool.fetchval("SELECT packet_id FROM apc_log.agent_packets WHERE seq = 303")
    async with written.pool.acquire() as connection:
        assert await find_packet(connection, packet_id) == (0, 303)
        with pytest.raises(ProofImpossible, match="no packet"):
            await find_packet(connection, uuid4())
        with pytest.raises(ProofImpossible, match="no entry 607"):
            await prove_entry(connection, key, 0, 607)
        with pytest.raises(ProofImpossible, match="no checkpoint of 203"):
            await prove_consistency(connection, key, 0, 203, 606)
        with pytest.raises(ProofImpossible, match="was judged by the contract"):
            await anext(bundle_lines(connection, "run-2", written.signer, [b"another"]))
        with pytest.raises(ProofImpossible, match="no packet of run"):
            await anext(bundle_lines(connection, "run-9", written.signer, []))
