"""The compose files of a checkout, the bus and the reference swarm, against the code; `make test-compose` runs them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.servers.compose_model import read_compose

from apc_agents.team import load_agent
from apc_automl.roles import MODULE, ROLES
from apc_cli.commands.config import settings_in_force
from apc_cli.commands.deploy import FILES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """Both compose files, as Docker merges them."""
    return read_compose([ROOT / "docker-compose.yml", ROOT / "docker-compose.override.yml"])


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    """Their services."""
    services: dict[str, Any] = compose["services"]
    return services


def secrets_of(service: dict[str, Any]) -> dict[str, str]:
    """Where a service finds each of its secrets: name of the secret -> file inside the container."""
    given: list[dict[str, str]] = [
        entry if isinstance(entry, dict) else {"source": entry} for entry in service.get("secrets", ())
    ]
    return {entry["source"]: entry.get("target") or entry["source"] for entry in given}


def workers(services: dict[str, Any]) -> set[str]:
    return {name for name, service in services.items() if service.get("command", [""])[0] == "worker"}


def ours(services: dict[str, Any]) -> dict[str, Any]:
    """The services that run our images."""
    return {name: service for name, service in services.items() if service["image"].startswith("${APC_")}


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
    return {mount.replace("${DATA_FOLDER:-./data}", "data") for mount in service.get("volumes", ())}


def test_who_mounts_what(services: dict[str, Any]) -> None:
    read = "apc-artifacts:/var/lib/apc-artifacts:ro"
    archive = "apc-archive:/var/lib/apc-archive:ro"
    expected = {name: set[str]() for name in ours(services)} | {
        "persister": {"apc-log:/var/lib/apc"},
        "log-key": {"apc-log:/var/lib/apc"},
        "artifacts": {"apc-artifacts:/var/lib/apc-artifacts"},
        "orchestrator": {read},
        "report": {read},
        "archiver": {"apc-archive:/var/lib/apc-archive", "apc-archiver:/var/lib/apc"},
        "web": {"apc-web:/var/lib/apc:ro", archive},
        "mcp": {"apc-web:/var/lib/apc:ro", archive},
        "accounts": {"apc-web:/var/lib/apc"},
        "operator": {"apc-callers:/var/lib/apc-callers", archive},
        "a2a": {read, "apc-a2a:/var/lib/apc", "apc-callers:/var/lib/apc-callers:ro"},
        **{role: {read} for role in services if services[role].get("command", [""])[0] == "worker"},
        "librarian": {read, "data:/data:ro"},
    }

    assert {name: volumes_of(service) for name, service in ours(services).items()} == expected


def test_every_secret_is_a_setting_of_ours_and_no_variable_holds_one(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    known = {setting.name for setting in settings_in_force()}

    for name, service in ours(services).items():
        files = {target for target in secrets_of(service).values() if target.upper() not in known}
        told = [*service["command"], *map(str, service["environment"].values())] if files else []
        assert {f"/run/secrets/{file}" for file in files} <= set(told), f"{name}: a secret that nothing reads"
    for name, service in services.items():
        given = map(str, service.get("environment", {}).values())
        assert not [value for value in given if re.search(r"://[^/]*:[^/]*@|PASSWORD", value)], name
    used = {secret for service in services.values() for secret in secrets_of(service)}
    assert used == set(compose["secrets"])


def test_no_two_services_share_a_password_of_broker_or_database(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    """But those that run once for the administrator or the operator, the servers themselves, and `mcp` as `web`."""
    holders: dict[str, set[str]] = {}
    for name, service in ours(services).items():
        for secret in secrets_of(service):
            for user in re.findall(r"\{([\w.-]+)\}", compose["secrets"][secret].get("x-content", "")):
                holders.setdefault(user, set()).add(name)

    one_shot = {name for name, service in services.items() if service.get("restart") == "no"}
    assert all(len(found - one_shot - {"mcp"}) <= 1 for found in holders.values()), holders
    for role in workers(services):
        assert {user for user, found in holders.items() if role in found} == {f"agent.{role}"}
    script = (ROOT / "deploy/postgres-users.sh").read_text()
    made = re.findall(r"^    \('\S+', :'(\w+)', ", script, re.MULTILINE)
    assert {"web", "door"} <= set(made)
    assert len(made) == len(set(made))


def test_each_service_is_in_the_networks_that_it_needs(services: dict[str, Any]) -> None:
    agents = {name for name, service in services.items() if "agents" in service.get("networks", ())}

    assert agents == {"rabbitmq", "postgres", "artifacts"} | workers(services)
    assert all(services[name]["networks"] == ["agents"] for name in workers(services))
    for name in ("orchestrator", "persister", "archiver", "operator", "web-person"):
        assert services[name]["networks"] == ["services"]
    for name in ("log-key", "accounts"):
        assert services[name]["network_mode"] == "none"
    assert {name for name, one in services.items() if "web" in one.get("networks", ())} == {
        "rabbitmq",
        "postgres",
        "web",
        "mcp",
    }
    assert services["web"]["networks"] == services["mcp"]["networks"] == ["web"]
    reached = {name for name, one in services.items() if "a2a" in one.get("networks", ())}
    assert reached == {"rabbitmq", "postgres", "artifacts", "a2a"} and services["a2a"]["networks"] == ["a2a"]
    assert all("networks" in service or "network_mode" in service for service in services.values())


def test_the_web_console_holds_no_key_and_no_right_beyond_its_job(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    held = {compose["secrets"][name].get("x-content", "") for name in secrets_of(services["web"])}
    assert secrets_of(services["mcp"]) == secrets_of(services["web"]) and "--acts" not in services["mcp"]["command"]

    users = {user for content in held for user in re.findall(r"\{([\w.-]+)\}", content)}
    assert users == {"web", "apc_web"}
    assert services["web-person"]["command"][-2:] == ["--via", "web"]
    script = (ROOT / "deploy/postgres-users.sh").read_text()
    assert "('apc_web', :'web', 'apc_reader, apc_state_reader, apc_settler')" in script
    certified = set(compose["secrets"]["web_tls_cert"]["x-certificate"])
    named = services["web"]["environment"]["APC_WEB_HOSTS"]
    assert set(re.findall(r'"([^"]+)"', named)) == certified, "the names of the certificate"


def test_the_door_holds_no_key_and_no_right_beyond_its_job(compose: dict[str, Any], services: dict[str, Any]) -> None:
    door = services["a2a"]
    held = {compose["secrets"][name].get("x-content", "") for name in secrets_of(door)}

    assert {user for content in held for user in re.findall(r"\{([\w.-]+)\}", content)} == {"door", "apc_a2a"}
    script = (ROOT / "deploy/postgres-users.sh").read_text()
    assert "('apc_a2a', :'door', 'apc_reader, apc_door')" in script
    certified = set(compose["secrets"]["a2a_tls_cert"]["x-certificate"])
    assert set(re.findall(r'"([^"]+)"', door["environment"]["APC_A2A_HOSTS"])) == certified
    assert door["profiles"] == ["a2a"], "without a team there is nothing to serve"
    files = {services[name]["environment"]["APC_A2A_CALLERS_FILE"] for name in ("operator", "a2a")}
    assert files == {"/var/lib/apc-callers/callers.json"}
    assert "/var/lib/apc-callers" in (ROOT / "deploy/Dockerfile").read_text(), "else the engine makes it for root"


def test_the_archiver_holds_no_key_and_no_right_beyond_its_job(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    """It reaches the database with one login, and no broker; it has no key that signs."""
    archiver = services["archiver"]
    held = {compose["secrets"][name].get("x-content", "") for name in secrets_of(archiver)}

    assert {user for content in held for user in re.findall(r"\{([\w.-]+)\}", content)} == {"apc_archiver_service"}
    script = (ROOT / "deploy/postgres-users.sh").read_text()
    assert "('apc_archiver_service', :'archiver', 'apc_reader, apc_archiver')" in script
    assert archiver["profiles"] == ["archive"], "nothing is archived unless it is asked for"
    assert "/var/lib/apc-archive" in (ROOT / "deploy/Dockerfile").read_text(), "else the engine makes it for root"
    urls = {name for name, one in ours(services).items() if one["environment"].get("APC_ARCHIVE_URL")}
    assert {"archiver", "web", "mcp", "operator"} <= urls


def test_only_what_shares_the_network_of_the_broker_reaches_its_management(services: dict[str, Any]) -> None:
    shares = {name for name, service in services.items() if service.get("network_mode") == "service:rabbitmq"}
    published = {port.rpartition(":")[0] for service in services.values() for port in service.get("ports", ())}

    assert shares == {"topology", "register"}
    assert {name for name, service in services.items() if "management_url" in secrets_of(service)} == shares
    ports = (ROOT / "deploy/rabbitmq-management.conf").read_text()
    assert "management.tcp.ip = 127.0.0.1" in ports and "prometheus.tcp.ip = 127.0.0.1" in ports
    # A check of all listeners at the container's own address fails: these two do not answer there.
    assert services["rabbitmq"]["healthcheck"]["test"][-2:] == ["--address", "127.0.0.1"]
    assert published == {"127.0.0.1:5672", "127.0.0.1:5432", "127.0.0.1:8443", "127.0.0.1:8444", "127.0.0.1:8445"}


def test_every_foreign_image_has_a_variable_and_is_pinned_by_its_digest(services: dict[str, Any]) -> None:
    foreign = {name: services[name]["image"] for name in services.keys() - ours(services).keys()}
    pins = yaml.safe_load((ROOT / "deploy/docker-compose.pins.yml").read_text())["services"]

    assert pins.keys() == foreign.keys() != set()
    for name, image in foreign.items():
        default = re.fullmatch(rf"\${{{name.upper()}_IMAGE:-(\w+):[\w.-]+}}", image)
        assert default, image
        assert set(pins[name]) == {"image"}
        assert pins[name]["image"].startswith(f"{default[1]}@${{{name.upper()}_DIGEST:?"), "no default: it must be set"


def test_every_service_has_limits_and_those_that_go_on_a_health_check(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service.get("mem_limit") and service.get("pids_limit"), name
        assert ("healthcheck" in service) == (service["restart"] != "no"), name


def test_one_service_builds_each_image_from_all_that_it_copies(services: dict[str, Any]) -> None:
    built = {name: service["build"]["target"] for name, service in services.items() if "build" in service}
    assert built == {"migrate": "apc-bus", "register": "apc-bus-automl"}
    assert all(services[name]["image"].endswith(f":-{target}:0.1.0}}") for name, target in built.items())
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert set(built.values()) <= set(re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE))
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
    allowed = set(re.findall(r"^!(\S+)$", (ROOT / "deploy/Dockerfile.dockerignore").read_text(), re.MULTILINE))

    sources = {source for line in copied for source in line.split()}
    assert {source for source in sources if not any(f"{source}/".startswith(f"{name}/") for name in allowed)} == set()
    assert {name for name in allowed if not any(f"{source}/".startswith(f"{name}/") for source in sources)} == set()
    assert all((ROOT / source).exists() for source in sources)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    packed = {*wheel["packages"], *wheel["force-include"]}
    assert {name for name in packed if not {name, name.partition("/")[0]} & sources} == set()


def test_the_image_installs_no_package_of_our_own_name() -> None:
    """An extra may name another one of ours, which no index has."""
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    for names in re.findall(r"requirements.py ([a-z0-9 -]+) >", dockerfile):
        command = [sys.executable, "deploy/image/requirements.py", *names.split()]
        printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert "pydantic" in printed and "apc-bus" not in printed, names


def test_the_page_is_built_from_what_the_image_copies() -> None:
    """The build checks the types of its tests too, and `web` is all that it has."""
    web = ROOT / "web"
    scripts = [file for file in (web / "frontend").glob("[!n]*/**/*.ts*") if file.suffix in (".ts", ".tsx")]
    read = {
        (file.parent / name).resolve() for file in scripts for name in re.findall(r'from "(\.[^"]+)"', file.read_text())
    }
    assert {name for name in read if web not in name.parents} == set()
    assert len(read) > 50


def test_the_wheel_has_every_file_of_a_deployment() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    places = {source: place for source, place in wheel["force-include"].items() if "/deployment/" in place}

    assert places == {str(name): f"apc_cli/deployment/{name}" for name in FILES}
    core: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    mounted = {mount.split(":")[0] for service in core["services"].values() for mount in service.get("volumes", ())}
    assert {mount.removeprefix("./") for mount in mounted if mount.startswith("./")} <= places.keys()


def test_the_bus_alone_names_no_agent_and_builds_nothing() -> None:
    core = read_compose([ROOT / "docker-compose.yml"])

    assert workers(core["services"]) == set() and "register" not in core["services"]
    assert "{agent." not in (ROOT / "docker-compose.yml").read_text()
    assert not [name for name, service in core["services"].items() if "build" in service or "extends" in service]


@pytest.mark.parametrize("template", ["agent", "register", "client"])
def test_a_template_is_guarded_as_our_own_services_are(services: dict[str, Any], template: str) -> None:
    """What a project extends (deploy/agent.yml) has the limits of the services in docker-compose.yml."""
    ours: dict[str, Any] = services["artifacts" if template == "agent" else "operator"]
    theirs = yaml.safe_load((ROOT / "deploy/agent.yml").read_text())["services"][template]

    for key in ("read_only", "tmpfs", "cap_drop", "security_opt", "init", "mem_limit", "pids_limit", "restart"):
        assert theirs[key] == ours[key], key
    declared = read_compose([ROOT / "docker-compose.yml"])["secrets"]
    assert secrets_of(theirs).keys() <= declared.keys()
    assert ("administrator_amqp_url" in secrets_of(theirs), "privileged" in theirs) == (False, False)
