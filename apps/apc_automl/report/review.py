"""The review of a judged model: its predictions come from the confined reader, the figures from a training process."""

from apc_automl.errors import ModelFileRefused, TrainingUnavailable
from apc_automl.report.run_log import RunLog
from apc_automl.swarm.briefs import REST
from apc_automl.swarm.study_cache import fetch
from apc_automl.training import work
from apc_automl.training.material import Blob, JsonObject, Study
from apc_automl.training.workbench import Workbench
from apc_bus.artifacts import ArtifactStore
from apc_bus.telemetry import get_logger

log = get_logger("apc_automl")


async def review_of(run: RunLog, artifacts: ArtifactStore, workbench: Workbench) -> JsonObject | None:
    """Return what `reviewing.review` finds about the last judged model; None where none was judged or can be read.

    Raises:
        ArtifactError: an artifact that the log names cannot be read.
    """
    evidence = run.validations[-1].evidence if run.validations else ()
    names = run.brief
    if len(evidence) != 4 or "schema" not in names:
        return None
    model, untouched = await fetch(artifacts, evidence[1]), await fetch(artifacts, evidence[3])
    parts: dict[str, Blob] = {
        name: await fetch(artifacts, names[name]) for name in ("schema", "train", "held-out", REST) if name in names
    }
    study = Study(parts["schema"], parts["train"], parts["held-out"], run.seed, parts.get(REST))
    shuffled = await workbench.run(work.shuffled_rows, study.schema.data, untouched.data, study.seed)
    try:
        [said] = await workbench.predict(model, study, untouched)
        found = {}
        for name, rows in shuffled.items():
            [found[name]] = await workbench.predict(model, study, Blob.of(rows))
        return await workbench.run(work.review, study, untouched, said, found)
    except (ModelFileRefused, TrainingUnavailable) as error:
        log.warning("not_reviewed", reason=str(error), run_id=run.run_id)
        return None
