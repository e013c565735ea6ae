"""The data of a run, fetched by hash and kept while the role works on it."""

from apc_automl.swarm.briefs import Brief
from apc_automl.training.material import Blob, Study
from apc_bus.artifacts import ArtifactStore

RUNS_KEPT = 4


async def fetch(artifacts: ArtifactStore, artifact_hash: str) -> Blob:
    """Return the bytes of a hash, verified by the store. Raises ArtifactError."""
    return Blob(artifact_hash, await artifacts.get(artifact_hash))


class StudyCache:
    """The study of each run that a role takes part in; a cache, rebuilt from the brief at need."""

    def __init__(self) -> None:
        self._studies: dict[tuple[str, ...], Study] = {}

    async def study(self, brief: Brief, artifacts: ArtifactStore) -> Study:
        """Return what a recipe is measured on, as the brief says. Raises ArtifactError."""
        names = (brief.slices["schema"], brief.slices["train"], brief.slices["held-out"])
        key = (*names, str(brief.seed))
        if key not in self._studies:
            schema, train, held_out = [await fetch(artifacts, name) for name in names]
            while len(self._studies) >= RUNS_KEPT:
                self._studies.pop(next(iter(self._studies)))
            self._studies[key] = Study(schema, train, held_out, brief.seed)
        return self._studies[key]
