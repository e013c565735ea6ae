"""The compose file against the code: it could not be run where it was written."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from apc_agents.loading import load_agent
from apc_automl.roles import MODULE, ROLES
from apc_console.configuration import settings_in_force

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """The services of the compose file."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services: dict[str, Any] = compose["services"]
    return services


def ours(services: dict[str, Any]) -> dict[str, Any]:
    """Return the services that run our image."""
    return {name: service for name, service in services.items() if "build" in service}


def test_there_is_a_service_for_each_role(services: dict[str, Any]) -> None:
    run = {service["command"][1] for service in services.values() if service.get("command", [""])[0] == "worker"}

    assert run == {f"{MODULE}:{role}" for role in ROLES}


def test_every_role_is_registered_before_it_runs(services: dict[str, Any]) -> None:
    modules = services["register"]["command"][2:]

    assert sorted(modules) == sorted(f"{MODULE}:{role}" for role in ROLES)
    assert len({load_agent(module).agent_id for module in modules}) == len(ROLES)
    for service in services.values():
        if service.get("command", [""])[0] == "worker":
            assert "register" in service["depends_on"]


def test_every_setting_is_one_of_ours(services: dict[str, Any]) -> None:
    known = {setting.name for setting in settings_in_force()}

    for name, service in ours(services).items():
        unknown = {key for key in service["environment"] if key.startswith("APC_")} - known
        assert not unknown, f"{name}: {unknown}"


def test_services_that_others_wait_for_have_health_checks(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
            else:
                assert services[name].get("restart") == "no"


def test_no_service_of_ours_runs_with_rights_it_does_not_need(services: dict[str, Any]) -> None:
    for service in ours(services).values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert re.search(r"^USER apc$", dockerfile, re.MULTILINE)


def volumes_of(service: dict[str, Any]) -> set[str]:
    return {mount.removeprefix("./").replace("${DATA_FOLDER:-./data}", "data") for mount in service.get("volumes", ())}


def test_who_mounts_what(services: dict[str, Any]) -> None:
    read = "apc-artifacts:/var/lib/apc-artifacts:ro"
    expected = {name: set[str]() for name in ours(services)} | {
        "persister": {"apc-log:/var/lib/apc"},
        "log-key": {"apc-log:/var/lib/apc"},
        "artifacts": {"apc-artifacts:/var/lib/apc-artifacts"},
        "orchestrator": {read},
        **{role: {read} for role in services if services[role].get("command", [""])[0] == "worker"},
        "librarian": {read, "data:/data:ro"},
    }

    assert {name: volumes_of(service) for name, service in ours(services).items()} == expected


def test_no_two_services_share_a_password_of_broker_or_database(services: dict[str, Any]) -> None:
    """But those that run once for the same operator."""
    users: dict[str, set[str]] = {}
    for service in ours(services).values():
        for url in map(str, service["environment"].values()):
            for user, password in re.findall(r"//([\w.-]+):\$\{(\w+):\?", url):
                users.setdefault(password, set()).add(user)

    assert all(len(found) == 1 for found in users.values()), users
    script = (ROOT / "deploy/postgres-users.sh").read_text()
    made = re.findall(r"CREATE ROLE \S+ LOGIN PASSWORD :'(\w+)'", script)
    assert len(made) == len(set(made))


def test_the_example_environment_names_what_the_file_asks_for() -> None:
    asked = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))
    given = set(re.findall(r"^(\w+)=", (ROOT / "deploy/example.env").read_text(), re.MULTILINE))

    assert asked <= given
