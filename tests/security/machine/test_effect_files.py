"""The file of effects of a program without a bus: its results are for its owner alone."""

import os
from pathlib import Path
from stat import S_IMODE

import pytest

from apc_agents import AgentError, SQLiteEffectStore, once, sqlite_effects


def modes(folder: Path) -> set[str]:
    """Return the rights of all files of a folder."""
    return {oct(S_IMODE(one.stat().st_mode)) for one in folder.iterdir()}


@pytest.mark.parametrize("is_guarded", [False, True])
def test_nobody_else_reads_the_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_guarded: bool) -> None:
    """The write-ahead log has the same rights, and a file that was open to others has no more."""
    if not is_guarded:
        monkeypatch.setattr(sqlite_effects, "make_private_file", lambda path: None)
        monkeypatch.setattr(sqlite_effects, "_check_owned", lambda path: None)
    before = os.umask(0o022)
    try:
        for number, is_old in enumerate((False, True)):
            folder = tmp_path / str(number)
            folder.mkdir()
            if is_old:
                (folder / "effects.db").touch(0o644)
            store = SQLiteEffectStore(folder / "effects.db")

            @once(store, scope="run-1")
            def pay(order: str) -> str:
                return f"receipt of {order}"

            pay("o-1")
            assert {one.name for one in folder.iterdir()} == {"effects.db", "effects.db-wal", "effects.db-shm"}
            assert modes(folder) == ({"0o600"} if is_guarded else {"0o644"})
            store.close()
    finally:
        os.umask(before)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_link_in_its_place_is_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_guarded: bool) -> None:
    """Who may write the folder lays a link to another file of ours there."""
    if not is_guarded:
        monkeypatch.setattr(sqlite_effects, "_check_owned", lambda path: None)
    (tmp_path / "effects.db").symlink_to(tmp_path / "other.db")
    if is_guarded:
        with pytest.raises(AgentError, match="must be a regular file of this user, readable by nobody else"):
            SQLiteEffectStore(tmp_path / "effects.db")
    else:
        SQLiteEffectStore(tmp_path / "effects.db").close()
    assert (tmp_path / "other.db").exists() is not is_guarded
