"""The chart against helm, the schemas of Kubernetes and KEDA, and the code that it starts. No cluster has run it."""

import copy
import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.support.helm import FOLDER

from apc_bus.settings.services import GateSettings
from apc_bus.topology import agent_queue
from apc_cli.commands.config import settings_in_force

from .conftest import CASES, Chart, Object, kinds_of, pods_of

OLDEST, NEWEST = "1.27", "1.35"
FOREIGN = ("keda.sh/", "monitoring.coreos.com/")
CHECK_KEDA = """
import { readFileSync } from 'node:fs';
import * as models from '@kubernetes-models/keda/keda.sh/v1alpha1';
for (const one of JSON.parse(readFileSync(0))) await new models[one.kind](one).validate();
"""


def own(objects: list[Object]) -> list[Object]:
    """Those of Kubernetes itself."""
    return [found for found in objects if not found["apiVersion"].startswith(FOREIGN)]


def of_keda(objects: list[Object]) -> list[Object]:
    return [found for found in objects if found["apiVersion"].startswith("keda.sh/")]


def check_keda(objects: list[Object]) -> subprocess.CompletedProcess[str]:
    command = ["node", "--input-type=module", "--eval", CHECK_KEDA]
    return subprocess.run(command, cwd=FOLDER, input=json.dumps(objects), capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_nothing(chart: Chart, case: str) -> None:
    said = chart.lint(case)
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("case", CASES)
def test_every_object_fits_the_schemas_of_kubernetes(chart: Chart, case: str, version: str) -> None:
    for found in own(chart.render(case)):
        kubernetes_validate.validate(found, version, strict=True)


def test_the_schemas_refuse_what_is_wrong(chart: Chart) -> None:
    gate = next(found for found in chart.render("minimal") if found["metadata"]["name"] == "apc-gate")
    for place, value in (("replicas", "two"), ("replica", 2)):
        wrong = copy.deepcopy(gate)
        wrong["spec"][place] = value
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, NEWEST, strict=True)


def test_the_objects_of_keda_fit_its_schemas(chart: Chart) -> None:
    objects = of_keda(chart.render("operators"))
    assert {found["kind"] for found in objects} == {"ScaledObject", "TriggerAuthentication"}
    said = check_keda(objects)
    assert said.returncode == 0, said.stderr

    scaled = next(found for found in objects if found["kind"] == "ScaledObject")
    scaled["spec"]["triggers"][0]["metadata"]["value"] = 10
    assert "must be string" in check_keda([scaled]).stderr


def test_workers_alone_are_scaled_by_their_two_queues(chart: Chart) -> None:
    objects = chart.render("operators")
    scaled = {found["spec"]["scaleTargetRef"]["name"]: found for found in objects if found["kind"] == "ScaledObject"}

    assert {kinds_of(objects)[name] for name in scaled} == {"worker"}
    triggers = [trigger["metadata"] for trigger in scaled["apc-planner"]["spec"]["triggers"]]
    assert [trigger["queueName"] for trigger in triggers] == [
        agent_queue("planner", True),
        agent_queue("planner", False),
    ]
    assert {(trigger["protocol"], trigger["mode"]) for trigger in triggers} == {("http", "QueueLength")}
    deployment = next(
        found for found in objects if found["kind"] == "Deployment" and found["metadata"]["name"] == "apc-planner"
    )
    assert "replicas" not in deployment["spec"], "an upgrade would undo what KEDA has set"


@pytest.mark.parametrize("case", CASES)
def test_every_setting_is_one_of_ours(chart: Chart, case: str) -> None:
    known = {setting.name for setting in settings_in_force()}
    for name, pod in pods_of(chart.render(case)).items():
        [container] = pod["containers"]
        given = {variable["name"] for variable in container["env"] if variable["name"].startswith("APC_")}
        named = {variable.get("value") for variable in container["env"]}
        files = {
            item["key"].upper()
            for volume in pod["volumes"]
            for item in volume.get("secret", {}).get("items", ())
            if volume["name"] == "secrets" and f"/run/secrets/{item['key']}" not in named
        }
        assert given | files <= known, name
        assert not given & files, f"{name}: a variable counts before a file"


def test_orchestrators_divide_the_shards_by_the_numbers_of_their_pods(
    chart: Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = chart.render("operators", shards=16)
    [gate] = [found for found in objects if found["kind"] == "StatefulSet"]
    environment = {one["name"]: one for one in gate["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert "APC_ORCHESTRATOR" not in environment, "it is the name of the pod"
    count = gate["spec"]["replicas"]
    names = [f"{gate['metadata']['name']}-{number}" for number in range(count)]
    for name in ("APC_SHARDS", "APC_ORCHESTRATORS"):
        monkeypatch.setenv(name, environment[name]["value"])
    shares = []
    for name in names:
        monkeypatch.setenv("APC_ORCHESTRATOR", name)
        settings = GateSettings()
        taken = {shard: settings.orchestrator_of(shard) for shard in settings.own_shards}
        assert set(taken.values()) == set(names)
        shares.append({shard for shard, taker in taken.items() if taker == name})
    assert set.union(*shares) == set(range(16)) and sum(map(len, shares)) == 16


def test_a_persister_of_many_shards_has_a_connection_for_each(chart: Chart) -> None:
    def pool(**values: Any) -> int | None:
        [container] = pods_of(chart.render("minimal", **values))["apc-log-writer"]["containers"]
        return next((int(one["value"]) for one in container["env"] if one["name"] == "APC_DATABASE_POOL"), None)

    assert pool() is None
    assert (pool(shards=16) or 0) > 16
    assert pool(shards=16, settings={"APC_DATABASE_POOL": 40}) == 40


def test_a_stopped_worker_may_finish_its_longest_handler(chart: Chart) -> None:
    pod = pods_of(chart.render("operators"))["apc-planner"]
    [container] = pod["containers"]
    drain = next(int(one["value"]) for one in container["env"] if one["name"] == "APC_DRAIN_TIMEOUT")

    assert pod["terminationGracePeriodSeconds"] > drain > 600


def test_a_worker_is_registered_by_its_own_image(chart: Chart) -> None:
    pods = pods_of(chart.render("operators"))
    for name in ("planner", "critic"):
        [worker], [register] = pods[f"apc-{name}"]["containers"], pods[f"apc-register-{name}-1"]["containers"]
        assert (register["image"], register["args"][2]) == (worker["image"], worker["args"][1])


def named(objects: list[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind by their name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def services_of(objects: list[Object]) -> dict[str, Object]:
    """Return what keeps pods running, by its name."""
    return named(objects, "Deployment") | named(objects, "StatefulSet")


def test_every_service_is_spread_and_loses_one_pod_at_a_time(chart: Chart) -> None:
    objects = chart.render("operators")
    budgets, deployments = named(objects, "PodDisruptionBudget"), services_of(objects)

    assert budgets.keys() == deployments.keys()
    for name, deployment in deployments.items():
        wanted = deployment["spec"]["selector"]["matchLabels"]
        assert budgets[name]["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": wanted}}
        [spread] = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == wanted


def test_pods_run_under_an_account_that_exists(chart: Chart) -> None:
    objects = chart.render("operators")
    account = named(objects, "ServiceAccount")["apc-apc"]
    assert account["metadata"]["annotations"] == {"example.org/role": "apc"}
    assert account["automountServiceAccountToken"] is False
    assert {pod.get("serviceAccountName", "apc-apc") for pod in pods_of(objects).values()} == {"apc-apc"}

    given = chart.render("operators", existingServiceAccount="robots")
    assert named(given, "ServiceAccount") == {}
    assert {pod.get("serviceAccountName", "robots") for pod in pods_of(given).values()} == {"robots"}


def test_every_pod_gets_what_the_operator_adds(chart: Chart) -> None:
    for name, pod in pods_of(chart.render("operators")).items():
        [container] = pod["containers"]
        assert {"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"} in container["env"], name
        assert {"name": "company-ca", "configMap": {"name": "company-ca"}} in pod["volumes"], name
        mount = {"name": "company-ca", "mountPath": "/etc/company", "readOnly": True}
        assert mount in container["volumeMounts"], name


def test_alerts_and_dashboard_are_the_files_of_the_chart(chart: Chart) -> None:
    objects, files = chart.render("operators"), Path(__file__).parents[2] / "deploy/helm/apc-bus/files"

    rule = named(objects, "PrometheusRule")["apc-alerts"]
    assert rule["spec"] == yaml.safe_load((files / "alerts.yml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    dashboard = named(objects, "ConfigMap")["apc-dashboard"]
    assert dashboard["data"]["apc-bus.json"] == (files / "dashboard.json").read_text()
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_what_is_scraped_has_the_job_that_alerts_name(chart: Chart) -> None:
    for monitor in named(chart.render("operators"), "ServiceMonitor").values():
        [endpoint] = monitor["spec"]["endpoints"]
        assert {"targetLabel": "job", "replacement": "apc"} in endpoint["relabelings"]


def test_the_policy_of_the_archiver_is_a_file_whose_change_makes_another_pod(chart: Chart) -> None:
    def archiver(**values: Any) -> tuple[Object, set[str]]:
        objects = chart.render("operators", **values)
        pod = pods_of(objects)["apc-archiver"]
        return pod, {name for name in named(objects, "ConfigMap") if name.startswith("apc-archiver")}

    pod, texts = archiver()
    mounted = {volume["configMap"]["name"] for volume in pod["volumes"] if volume["name"] == "policy"}
    assert mounted == texts and len(texts) == 1
    assert {"name": "APC_ARCHIVE_POLICY", "value": "/etc/apc/archive/policy.yml"} in pod["containers"][0]["env"]
    assert archiver(archiver__policy="release_after: P1D")[1].isdisjoint(texts)
    without, none = archiver(archiver__policy="")
    assert none == set() and "policy" not in {volume["name"] for volume in without["volumes"]}


def test_who_reads_the_archive_has_keys_for_it_or_does_not_know_it(chart: Chart) -> None:
    def readers(**values: Any) -> set[str]:
        pods = pods_of(chart.render("operators", **values))
        return {
            name
            for name, pod in pods.items()
            if "APC_ARCHIVE_URL" in {one["name"] for one in pod["containers"][0]["env"]}
        }

    assert readers() == {"apc-archiver", "apc-web", "apc-mcp"}
    assert readers(archiver__readSecret="") == {"apc-archiver"}
    assert readers(archiver__enabled=False) == set()


def discovery(objects: list[Object]) -> dict[str, Any]:
    """Return what an API server with the kinds of these objects answers about itself, by path."""
    kinds: dict[str, set[str]] = {"v1": {"Secret"}}
    for one in objects:
        kinds.setdefault(one["apiVersion"], set()).add(one["kind"])
    versions: list[Object] = [
        {
            "name": version.partition("/")[0],
            "versions": [{"groupVersion": version, "version": version.rpartition("/")[2]}],
        }
        for version in kinds
    ]
    for one in versions:
        one["preferredVersion"] = one["versions"][0]
    answers: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": versions[1:]},
    }
    for version, names in kinds.items():
        resources = [
            {"name": f"{name.lower()}s", "kind": name, "namespaced": True, "verbs": ["get"]} for name in sorted(names)
        ]
        found = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
        answers[f"/api/{version}" if version == "v1" else f"/apis/{version}"] = found
    return answers


@contextmanager
def api_server(objects: list[Object], secrets: Mapping[str, str]) -> Iterator[str]:
    """Serve what helm asks of a cluster that takes these objects and has these Secrets, one key each."""
    answers = discovery(objects)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, name = self.path.split("?")[0], self.path.rpartition("/")[2]
            found = answers.get(path)
            if path.endswith(f"/namespaces/default/secrets/{name}") and name in secrets:
                found = {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": name}, "data": {"k": secrets[name]}}
            missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *said: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sums(objects: list[Object]) -> dict[str, str]:
    """Return what the pods of each service are said to have been given."""
    found = {}
    for name, deployment in services_of(objects).items():
        annotations = deployment["spec"]["template"]["metadata"].get("annotations", {})
        if "apc-bus/secrets" in annotations:
            found[name] = annotations["apc-bus/secrets"]
    return found


def test_a_rotated_secret_restarts_the_pods_that_have_it(chart: Chart) -> None:
    secrets = {
        "apc-gate": "b25l",
        "apc-log-key": "a2V5",
        "planner": "YQ==",
        "apc-web-tls": "dGxz",
        "apc-a2a-tls": "dGxz",
    }
    objects = chart.render("operators")
    with api_server(objects, secrets) as cluster:
        before = sums(chart.render_in(cluster, "operators"))
    assert before.keys() == {"apc-gate", "apc-log-writer", "apc-mcp", "apc-planner", "apc-web", "apc-a2a"}
    holders = {"apc-gate": {"apc-gate"}, "apc-log-key": {"apc-log-writer"}, "apc-web-tls": {"apc-mcp", "apc-web"}}
    holders["apc-a2a-tls"] = {"apc-a2a"}
    for secret, pods in holders.items():
        with api_server(objects, secrets | {secret: "b3RoZXI="}) as cluster:
            after = sums(chart.render_in(cluster, "operators"))
        assert {name for name in before if after[name] != before[name]} == pods
    assert sums(objects) == {}, "without a cluster nobody knows the Secrets"
