"""The chart as Kubernetes would get it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.helm import HELM

CHART = Path(__file__).parents[2] / "deploy/helm/apc-bus"
CASES = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
Object = dict[str, Any]
SERVICES = {"gate", "log-writer", "artifacts"}


class Chart:
    """Renders the chart; `helm` is the program."""

    def __init__(self, helm: Path) -> None:
        self._helm = helm

    def lint(self, case: str) -> subprocess.CompletedProcess[str]:
        """Check the chart with the values of ci/<case>.yaml."""
        return self._run("lint", "--strict", CHART, "--values", CHART / f"ci/{case}.yaml")

    def try_render(self, case: str, **values: Any) -> subprocess.CompletedProcess[str]:
        """As `render`, whatever comes of it."""
        given = [f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in values.items()]
        return self._run("template", "apc", CHART, "--values", CHART / f"ci/{case}.yaml", *given)

    def render(self, case: str, **values: Any) -> list[Object]:
        """Return the objects; a value `gate__replicas` is gate.replicas."""
        said = self.try_render(case, **values)
        assert said.returncode == 0, said.stderr
        return [found for found in yaml.safe_load_all(said.stdout) if found]

    def render_in(self, cluster: str, case: str) -> list[Object]:
        """As `render`, by what the API server at this URL says of the cluster."""
        at = [
            "--kube-apiserver",
            cluster,
            "--kubeconfig",
            "/dev/null",
            "--dry-run=server",
            "--disable-openapi-validation",
        ]
        said = self._run("template", "apc", CHART, "--values", CHART / f"ci/{case}.yaml", *at)
        assert said.returncode == 0, said.stderr
        return [found for found in yaml.safe_load_all(said.stdout) if found]

    def _run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(self._helm), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart; skips where `make check-chart` has not fetched helm."""
    if not HELM.exists():
        pytest.skip("`make check-chart` fetches helm")
    return Chart(HELM)


def pods_of(objects: list[Object]) -> dict[str, Object]:
    """Return the spec of each pod, by the name of what makes it."""
    return {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]
        for found in objects
        if "template" in found.get("spec", {})
    }


def kinds_of(objects: list[Object]) -> dict[str, str]:
    """Return what each pod is (`apc-bus/kind`), by the name of what makes it."""
    return {
        found["metadata"]["name"]: found["spec"]["template"]["metadata"]["labels"]["apc-bus/kind"]
        for found in objects
        if "template" in found.get("spec", {})
    }
