"""The chart's objects run by `podman kube play`, each Deployment and Job by itself: no API server, no policies.

podman plays no StatefulSet: the first pod of one is played as a Deployment, with its host name.
"""

import base64
import json
import subprocess
import time
from collections.abc import Iterable
from typing import Any

import yaml
from tests.support.waiting import until

Object = dict[str, Any]
NETWORK = "apc-pods"
READY = """
import sys, urllib.request
sys.stdout.write(str(urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}{sys.argv[2]}", timeout=3).status))
"""


def podman(*arguments: str, stdin: str = "", is_expected_to_work: bool = True) -> str:
    """Run podman; return what it prints. Fails the test with its words when it does not work."""
    done = subprocess.run(["podman", *arguments], input=stdin, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 or not is_expected_to_work, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout.strip()


def podman_succeeds(*arguments: str) -> bool:
    """Run podman; return whether it works."""
    return subprocess.run(["podman", *arguments], capture_output=True, timeout=300).returncode == 0


def secret(name: str, **files: str) -> Object:
    """Return a Secret of these files."""
    data = {file: base64.b64encode(content.encode()).decode() for file, content in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}


class Pods:
    """The pods of one release.

    Args:
        objects: what `helm template` has rendered.
    """

    def __init__(self, objects: Iterable[Object]) -> None:
        played = [_first_pod(one) if one["kind"] == "StatefulSet" else one for one in objects]
        self._objects = {(one["kind"], one["metadata"]["name"]): one for one in played}
        self._played: list[str] = []

    def play(self, kind: str, name: str, *options: str) -> None:
        """Start the pod of an object, with the name of its Service in the network."""
        played = _readable(self._objects[kind, name])
        self._give(played, f"{NETWORK}:alias={name}", *options)

    def keep(self, secrets: Iterable[Object]) -> None:
        """Store Secrets."""
        for one in secrets:
            self._give(one, NETWORK)

    def _give(self, played: Object, network: str, *options: str) -> None:
        text = yaml.safe_dump(played)
        podman("kube", "play", "--network", network, *options, "-", stdin=text)
        self._played.append(text)

    async def finish(self, name: str) -> None:
        """Run a Job to its end."""
        self.play("Job", name)
        container = self.container(name)

        def has_ended() -> bool:
            state = json.loads(podman("inspect", container, "--format", "{{json .State}}"))
            return bool(state["Status"] == "exited" and state["ExitCode"] == 0)

        try:
            await until(has_ended, 120, pause_seconds=0.5)
        except TimeoutError:
            raise AssertionError(podman("logs", "--tail", "20", container)) from None

    async def start(self, name: str, *options: str) -> None:
        """Start a Deployment and wait until its readiness probe is answered."""
        self.play("Deployment", name, *options)
        await self.wait(name)

    async def wait(self, name: str) -> None:
        """Wait until the readiness probe of a Deployment is answered."""
        [container] = self._objects["Deployment", name]["spec"]["template"]["spec"]["containers"]
        port = next(one["containerPort"] for one in container["ports"] if one["name"] == "health")
        path = container["readinessProbe"]["httpGet"]["path"]
        probe = ("exec", "--interactive", self.container(name), "python", "-", str(port), path)
        try:
            await until(lambda: podman(*probe, stdin=READY, is_expected_to_work=False) == "200", 120, pause_seconds=0.5)
        except TimeoutError:
            raise AssertionError(podman("logs", "--tail", "20", self.container(name))) from None

    def container(self, name: str) -> str:
        """Return the container of a Deployment or Job."""
        found = podman("ps", "--all", "--filter", f"pod={name}-pod", "--format", "{{.Names}}\t{{.IsInfra}}")
        [own] = [line.split("\t")[0] for line in found.splitlines() if not line.endswith("true")]
        return own

    def inside(self, name: str, code: str, *arguments: str) -> str:
        """Run Python in the container of a Deployment."""
        return podman("exec", "--interactive", self.container(name), "python", "-", *arguments, stdin=code)

    def crash(self, name: str) -> float:
        """Kill the process of a Deployment from outside, as a crash would; return the seconds until it runs again."""
        container, began = self.container(name), time.monotonic()
        pid = podman("inspect", container, "--format", "{{.State.Pid}}")
        subprocess.run(["kill", "-9", pid], check=True)
        while podman("inspect", container, "--format", "{{.State.Pid}}") in (pid, "0"):
            assert time.monotonic() - began < 60, "nothing has started it again"
        return round(time.monotonic() - began, 1)

    def close(self) -> None:
        """Remove everything."""
        for text in reversed(self._played):
            podman("kube", "down", "--force", "-", stdin=text, is_expected_to_work=False)


def _first_pod(stateful: Object) -> Object:
    found: Object = yaml.safe_load(yaml.safe_dump(stateful)) | {"kind": "Deployment"}
    found["spec"]["template"]["spec"]["hostname"] = f"{stateful['metadata']['name']}-0"
    for key in ("serviceName", "podManagementPolicy"):
        del found["spec"][key]
    return found


def _readable(given: Object) -> Object:
    """Return an object whose Secrets others than root can read: without fsGroup, which podman lacks."""
    found: Object = yaml.safe_load(yaml.safe_dump(given))
    for volume in found["spec"]["template"]["spec"]["volumes"]:
        if "secret" in volume:
            volume["secret"]["defaultMode"] = 0o444
    return found
