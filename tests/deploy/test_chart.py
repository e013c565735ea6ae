"""The chart against helm, the schemas of Kubernetes and KEDA, and the code that it starts. No cluster has run it."""

import copy
import json
import subprocess

import kubernetes_validate
import pytest
from tests.support.helm import FOLDER

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
