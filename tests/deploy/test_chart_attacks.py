"""What an agent's pod could do to the rest, and what stops it. Each guard is first shown to be missed."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from .conftest import CASES, Chart, Object, kinds_of, pods_of

BROKER, MANAGEMENT, DATABASE, HEALTH, UPLOADS, CONSOLE = 5671, 15671, 5432, 8080, 8082, 8443


def weaknesses(pod: Object) -> Iterator[str]:
    """What a pod may do that it need not."""
    if pod["automountServiceAccountToken"] is not False:
        yield "token"
    if pod["securityContext"].get("runAsNonRoot") is not True or pod["securityContext"].get("runAsUser") == 0:
        yield "root"
    if pod["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "seccomp"
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace") if pod.get(key))
    yield from (
        f"volume {volume['name']}" for volume in pod["volumes"] if not {"secret", "emptyDir", "configMap"} & set(volume)
    )
    for container in pod["containers"] + pod.get("initContainers", []):
        allowed = container["securityContext"]
        if allowed.get("readOnlyRootFilesystem") is not True:
            yield "writable"
        if allowed.get("allowPrivilegeEscalation") is not False or allowed.get("privileged"):
            yield "privileges"
        if allowed.get("capabilities") != {"drop": ["ALL"]}:
            yield "capabilities"
        if "memory" not in container["resources"]["limits"]:
            yield "memory"
        for mount in container["volumeMounts"]:
            volume = next(one for one in pod["volumes"] if one["name"] == mount["name"])
            if "secret" in volume and not mount.get("readOnly"):
                yield f"mount {mount['name']}"


@pytest.mark.parametrize("case", CASES)
def test_no_pod_has_rights_that_it_does_not_need(chart: Chart, case: str) -> None:
    pods = pods_of(chart.render(case))

    assert {name: found for name, pod in pods.items() if (found := list(weaknesses(pod)))} == {}


@pytest.mark.parametrize(
    ("place", "value", "weakness"),
    [
        (("automountServiceAccountToken",), True, "token"),
        (("securityContext", "runAsNonRoot"), False, "root"),
        (("hostNetwork",), True, "hostNetwork"),
        (("containers", 0, "securityContext", "readOnlyRootFilesystem"), False, "writable"),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True, "privileges"),
        (("containers", 0, "securityContext", "capabilities"), {}, "capabilities"),
        (("volumes", 0), {"name": "tmp", "hostPath": {"path": "/"}}, "volume tmp"),
    ],
)
def test_a_guard_that_is_missing_is_seen(chart: Chart, place: tuple[Any, ...], value: Any, weakness: str) -> None:
    pod = copy.deepcopy(pods_of(chart.render("minimal"))["apc-gate"])
    inner: Any = pod
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value

    assert list(weaknesses(pod)) == [weakness]


def secrets_of(pod: Object) -> set[str]:
    """Names of all Secrets that a pod gets, by file or variable."""
    files = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    variables = {
        variable["valueFrom"]["secretKeyRef"]["name"]
        for container in pod["containers"]
        for variable in container["env"]
        if "valueFrom" in variable
    }
    return files | variables


def test_who_gets_which_secret(chart: Chart) -> None:
    """The key that signs the log, and the right to write artifacts, are one pod's each."""
    common = {"apc-rabbitmq-ca", "apc-postgres-ca"}
    expected = {
        "apc-gate": {"apc-gate", "apc-artifacts-read"},
        "apc-log-writer": {"apc-log-writer", "apc-log-key", "apc-checkpoints"},
        "apc-artifacts": {"apc-artifacts-write"},
        "apc-archiver": {"apc-archiver", "apc-archive-write"},
        "apc-web": {"apc-web", "apc-web-tls", "apc-archive-read"},
        "apc-mcp": {"apc-web", "apc-web-tls", "apc-archive-read"},
        "apc-a2a": {"apc-a2a", "apc-a2a-tls", "apc-artifacts-read"},
        "apc-planner": {"planner", "apc-artifacts-read"},
        "apc-critic": {"critic", "apc-artifacts-read"},
        "apc-migrate": {"apc-migrate"},
        "apc-topology": {"apc-topology"},
        "apc-register-planner-1": {"apc-register"},
        "apc-register-critic-1": {"apc-register"},
    }
    found = {name: secrets_of(pod) - common for name, pod in pods_of(chart.render("operators")).items()}

    assert found == expected


@pytest.mark.parametrize("case", CASES)
def test_a_pod_gets_the_named_keys_of_a_secret_alone_and_no_password_as_a_variable(chart: Chart, case: str) -> None:
    for name, pod in pods_of(chart.render(case)).items():
        assert all(volume["secret"]["items"] for volume in pod["volumes"] if "secret" in volume), name
        [container] = pod["containers"]
        assert "envFrom" not in container
        by_reference = {variable["name"] for variable in container["env"] if "valueFrom" in variable}
        assert by_reference <= {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}, name


WORKER = {"name": "mallory", "agentId": "mallory", "agent": "mypkg.agents:mallory", "secret": "mallory"}

HARMLESS = {
    "extraVolumes": [{"name": "company", "secret": {"secretName": "company"}}],
    "extraVolumeMounts": [{"name": "company", "mountPath": "/etc/company", "readOnly": True}],
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "existingServiceAccount": "robots",
}
DOOR_VALUES = {
    "enabled": True,
    "team": "mypkg.agents:team",
    "secret": "door",
    "url": "https://agents",
    "hosts": ["agents"],
    "tlsSecret": "door-tls",
}
ARCHIVER_VALUES = {
    "enabled": True,
    "secret": "archiver",
    "url": "s3://log/archive",
    "writeSecret": "archive-write",
    "readSecret": "archive-read",
}
CONSOLE_VALUES = {"enabled": True, "secret": "console", "hosts": ["localhost"], "tlsSecret": "console-tls"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"workers": [WORKER | {"secret": "apc-log-key"}]}, "keep the log's key in its own Secret"),
        ({"gate__secret": "apc-log-key"}, "keep the log's key in its own Secret"),
        ({"workers": [WORKER | {"secret": "apc-gate"}]}, "give each worker its own Secret"),
        ({"workers": [WORKER | {"secret": "apc-register"}]}, "give each worker its own Secret"),
        ({"workers": [WORKER | {"secret": "console"}], "web": CONSOLE_VALUES}, "give each worker its own Secret"),
        ({"web": CONSOLE_VALUES | {"secret": "apc-gate"}}, "give the console its own"),
        ({"web": CONSOLE_VALUES | {"secret": "apc-log-key"}}, "keep the log's key in its own Secret"),
        ({"archiver": ARCHIVER_VALUES | {"secret": "apc-gate"}}, "give the archiver its own"),
        ({"archiver": ARCHIVER_VALUES | {"writeSecret": "apc-artifacts-write"}}, "give the archiver its own"),
        ({"archiver": ARCHIVER_VALUES | {"readSecret": "archive-write"}}, "who reads the archive may not write it"),
        ({"archiver": ARCHIVER_VALUES | {"secret": "apc-log-key"}}, "keep the log's key in its own Secret"),
        ({"archiver": ARCHIVER_VALUES | {"url": "https://store/archive"}}, "url"),
        ({"archiver": ARCHIVER_VALUES | {"writeSecret": ""}}, "writeSecret"),
        ({"workers": [WORKER | {"secret": "archiver"}], "archiver": ARCHIVER_VALUES}, "give each worker its own"),
        ({"workers": [WORKER | {"name": "archiver"}]}, "choose another"),
        ({"web": CONSOLE_VALUES | {"tlsSecret": ""}}, "tlsSecret"),
        ({"web": CONSOLE_VALUES | {"hosts": []}}, "hosts"),
        ({"mcp": {"enabled": True}}, "mcp: needs web.enabled"),
        ({"a2a": DOOR_VALUES | {"secret": "apc-gate"}}, "give the door its own"),
        ({"a2a": DOOR_VALUES | {"secret": "console"}, "web": CONSOLE_VALUES}, "give the door its own"),
        ({"workers": [WORKER | {"secret": "door"}], "a2a": DOOR_VALUES}, "give each worker its own Secret"),
        ({"a2a": DOOR_VALUES | {"secret": "apc-log-key"}}, "keep the log's key in its own Secret"),
        ({"a2a": DOOR_VALUES | {"tlsSecret": ""}}, "tlsSecret"),
        ({"a2a": DOOR_VALUES | {"hosts": []}}, "hosts"),
        ({"a2a": DOOR_VALUES | {"url": "http://agents"}}, "url"),
        ({"a2a": DOOR_VALUES | {"team": "mypkg:x\nhostNetwork: true"}}, "team"),
        (
            {"a2a": DOOR_VALUES | {"tlsSecret": "", "trustedProxies": ["10.0.0.7"], "clientCertificates": True}},
            "sees no certificate",
        ),
        ({"workers": [WORKER, WORKER | {"name": "other"}]}, "give each worker its own Secret"),
        ({"workers": [WORKER | {"name": "gate"}]}, "choose another"),
        ({"artifacts__readSecret": "apc-artifacts-write"}, "may only read artifacts"),
        ({"workers": [WORKER | {"volumes": [{"hostPath": {"path": "/"}}]}]}, "volumes"),
        ({"workers": [WORKER | {"agent": "mypkg:x\nhostNetwork: true"}]}, "agent"),
        ({"workers": [WORKER | {"secret": "x, optional: true"}]}, "secret"),
        (
            {"workers": [WORKER | {"settings": {"APC_AMQP_URL": "amqp://u:p@h/"}}]},
            "invalid propertyName 'APC_AMQP_URL'",
        ),
        ({"settings": {"APC_DATABASE_URL": "postgresql://u:p@h/"}}, "invalid propertyName 'APC_DATABASE_URL'"),
        ({"settings": {"LD_PRELOAD": "/tmp/x.so"}}, "invalid propertyName 'LD_PRELOAD'"),
        ({"broker__url": "amqp://user:password@host/"}, "url"),
        ({"extraVolumes": [{"name": "root", "hostPath": {"path": "/"}}]}, "extraVolumes/0"),
        ({"extraVolumes": [{"name": "secrets", "emptyDir": {}}]}, "extraVolumes/0/name"),
        ({"extraVolumes": [{"name": "key", "secret": {"secretName": "apc-log-key"}}]}, "which is a service's"),
        (
            {"extraVolumes": [{"name": "key", "projected": {"sources": [{"secret": {"name": "apc-log-key"}}]}}]},
            "which is a service's",
        ),
        ({"extraVolumeMounts": [{"name": "x", "mountPath": "/run/secrets/more"}]}, "mountPath"),
        ({"extraVolumeMounts": [{"name": "x", "mountPath": "/etc/apc"}]}, "mountPath"),
        ({"extraEnv": [{"name": "APC_DATABASE_URL", "value": "postgresql://u:p@h/"}]}, "extraEnv/0/name"),
        (
            {"extraEnv": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "apc-gate", "key": "apc_amqp_url"}}}]},
            "which is a service's",
        ),
        ({"existingServiceAccount": "Root User"}, "existingServiceAccount"),
    ],
)
def test_values_that_would_give_it_away_are_refused(chart: Chart, values: dict[str, Any], said: str) -> None:
    harmless = chart.try_render(
        "minimal", workers=[WORKER], web=CONSOLE_VALUES, a2a=DOOR_VALUES, archiver=ARCHIVER_VALUES, **HARMLESS
    )
    assert harmless.returncode == 0, harmless.stderr

    found = chart.try_render("minimal", **values)
    assert found.returncode != 0
    assert said in found.stderr


def ports(objects: list[Object], name: str, direction: str) -> set[int] | None:
    """Which ports a pod may reach (Egress) or be reached at (Ingress); None = no policy says anything: all."""
    labels = next(
        found["spec"]["template"]["metadata"]["labels"]
        for found in objects
        if found["metadata"]["name"] == name and "template" in found["spec"]
    )
    allowed: set[int] = set()
    is_closed = False
    for policy in (found["spec"] for found in objects if found["kind"] == "NetworkPolicy"):
        selector = policy["podSelector"]
        is_meant = selector["matchLabels"].items() <= labels.items() and all(
            labels[wanted["key"]] in wanted["values"] for wanted in selector.get("matchExpressions", ())
        )
        if is_meant and direction in policy["policyTypes"]:
            is_closed = True
            for rule in policy.get(direction.lower(), ()):
                allowed |= {port["port"] for port in rule["ports"]}
    return allowed if is_closed else None


def test_without_policies_everything_reaches_everything(chart: Chart) -> None:
    objects = chart.render("operators", networkPolicy__enabled=False)
    assert ports(objects, "apc-planner", "Egress") is None
    assert ports(objects, "apc-gate", "Ingress") is None


def test_each_pod_reaches_what_it_needs(chart: Chart) -> None:
    objects = chart.render("operators")
    store, archive, dns = 9000, 9100, 53
    expected = {
        "gate": {dns, BROKER, DATABASE, store},
        "log-writer": {dns, BROKER, DATABASE, store},
        "artifacts": {dns, BROKER, store},
        "worker": {dns, BROKER, DATABASE, store, UPLOADS},
        "archiver": {dns, DATABASE, archive},
        "web": {dns, BROKER, DATABASE, archive},
        "mcp": {dns, BROKER, DATABASE, archive},
        "a2a": {dns, BROKER, DATABASE, store, UPLOADS},
        "migrate": {dns, DATABASE},
        "topology": {dns, BROKER, MANAGEMENT, DATABASE},
        "register": {dns, BROKER, MANAGEMENT, DATABASE},
    }
    for name, kind in kinds_of(objects).items():
        more = {443} if name in ("apc-planner", "apc-a2a") else set()  # its own `egress`, and the receivers of push
        assert ports(objects, name, "Egress") == expected[kind] | more, name


def test_no_agent_reaches_the_gate_the_log_writer_or_a_health_page(chart: Chart) -> None:
    for case, monitored in (("operators", {HEALTH}), ("minimal", set())):
        objects = chart.render(case)
        for name, kind in kinds_of(objects).items():
            expected = {
                "artifacts": {UPLOADS},
                "gate": monitored,
                "log-writer": monitored,
                "archiver": monitored,
                "worker": monitored,
                "web": {CONSOLE} | monitored,  # from its own peers, `web.from`
                "mcp": {CONSOLE} | monitored,  # from its own peers, `mcp.from`
                "a2a": {CONSOLE} | monitored,  # from its own peers, `a2a.from`
            }
            assert ports(objects, name, "Ingress") == expected.get(kind, set()), name
    [watching] = [found for found in chart.render("operators") if found["metadata"]["name"] == "apc-from-monitoring"]
    [rule] = watching["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
