"""Secrets of a deployment: nobody else reads them, and no file that was put in their place is followed or replaced."""

from pathlib import Path

import pytest

from apc_cli.commands.deploy import write_files, write_secrets
from apc_cli.errors import InputUnusable

COMPOSE = 'secrets: {url: {file: ./secrets/url, x-content: "amqp://{planner}@rabbitmq/"}}'


@pytest.fixture
def compose(tmp_path: Path) -> Path:
    file = tmp_path / "docker-compose.yml"
    file.write_text(COMPOSE)
    return file


def test_a_folder_that_others_may_enter_is_refused(compose: Path, tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    folder.chmod(0o755)

    with pytest.raises(InputUnusable, match="chmod 700"):
        write_secrets([compose])
    assert not list(folder.iterdir())

    folder.chmod(0o700)  # without the guard's reason the same act works
    assert write_secrets([compose]).made == [folder / "url"]


def test_a_link_in_the_place_of_a_secret_is_not_written_through(compose: Path, tmp_path: Path) -> None:
    folder, victim = tmp_path / "secrets", tmp_path / "victim"
    folder.mkdir(0o700)
    victim.write_text("precious")
    (folder / "url").symlink_to(victim)
    (folder / ".url.new").symlink_to(victim)

    written = write_secrets([compose])

    assert victim.read_text() == "precious"
    (folder / "url").write_text("spoilt")
    assert victim.read_text() == "spoilt", "what is written without a look goes through the link"
    assert written.differing == [folder / "url"]
    (folder / "url").unlink()
    assert write_secrets([compose]).made == [folder / "url"]


def test_a_link_in_the_place_of_a_compose_file_is_not_written_through(tmp_path: Path) -> None:
    folder, victim = tmp_path / "project", tmp_path / "victim"
    (folder / "deploy").mkdir(parents=True)
    victim.write_text("precious")
    (folder / "deploy/rabbitmq.conf").symlink_to(victim)

    assert folder / "deploy/rabbitmq.conf" not in write_files(folder)

    assert victim.read_text() == "precious"
    (folder / "deploy/rabbitmq.conf").write_text("spoilt")
    assert victim.read_text() == "spoilt", "what is written without a look goes through the link"
