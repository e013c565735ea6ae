"""The outcome of a finished run, read from the log, and its files, such as `model.skops` with `model.json`."""

import asyncio
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import asyncpg

from apc_automl.errors import ModelFileRefused, TrainingUnavailable
from apc_automl.model.model_types import BEYOND_SKOPS
from apc_automl.report.outcome import Judged, Outcome, failures_of
from apc_automl.report.run_log import LoggedPacket, RunLog, read_run
from apc_automl.swarm.briefs import REST, TABLE_PROFILE, fetch
from apc_automl.swarm.narrative import Narrative, read_narrative
from apc_automl.training import work
from apc_automl.training.material import Blob, JsonObject, Study
from apc_automl.training.recipes import Recipe
from apc_automl.training.workbench import Workbench
from apc_bus.artifacts import ArtifactStore
from apc_bus.telemetry import get_logger
from apc_minds.memory import PostgresMemoryStore

FORMAT = "apc-automl-model/1"
LIBRARIES = ("scikit-learn", "numpy", "scipy", "pandas", "skrub", "skops", "apc-bus")


async def save_model(log: RunLog, artifacts: ArtifactStore, judged: Judged | None, folder: Path) -> Path | None:
    """Write the promoted model, else the last one that was judged, else the best one that was measured.

    Returns:
        the model file; None when no model is better than the trivial baseline.
    """
    chosen = _chosen(log)
    if chosen is None:
        return None
    packet, model_hash, recipe_hash = chosen
    model = await artifacts.get(model_hash)
    schema = json.loads(await artifacts.get(log.brief["schema"])) if "schema" in log.brief else None
    name = "candidate" if log.promoted is None else "model"
    record = {
        "format": FORMAT,
        "status": "candidate: the promotion gate refused it" if log.promoted is None else "promoted",
        "model": {"file": f"{name}.skops", "hash": model_hash},
        "trusted": BEYOND_SKOPS,
        "run_id": log.run_id,
        "log": {"shard": packet.shard, "seq": packet.seq, "packet_id": str(packet.packet_id)},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES},
        "recipe": json.loads(await artifacts.get(recipe_hash)),
        "metrics": _metrics(packet, judged),
        "schema": schema,
    }
    return await _write(folder / f"{name}.skops", model, record)


async def save_all_rows(log: RunLog, artifacts: ArtifactStore, folder: Path) -> Path | None:
    """Write the promoted recipe as it was trained on every row, `all_rows.skops`; None where the log promises none."""
    packet = log.all_rows
    if packet is None or log.promoted is None:
        return None
    model_hash = packet.payload["artifact_hash"]
    record = {
        "format": FORMAT,
        "status": "trained on every row, never scored: no row is left that could judge it",
        "model": {"file": "all_rows.skops", "hash": model_hash},
        "trusted": BEYOND_SKOPS,
        "run_id": log.run_id,
        "log": {"shard": packet.shard, "seq": packet.seq, "packet_id": str(packet.packet_id)},
        "recipe_of": log.promoted.payload["artifact_hash"],
    }
    return await _write(folder / "all_rows.skops", await artifacts.get(model_hash), record)


async def _write(path: Path, model: bytes, record: JsonObject) -> Path:
    await asyncio.to_thread(path.write_bytes, model)
    text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    await asyncio.to_thread(path.with_suffix(".json").write_text, text, encoding="utf-8")
    return path


def _chosen(log: RunLog) -> tuple[LoggedPacket, str, str] | None:
    """Return (the packet that names the model, the model's hash, the recipe's hash)."""
    recipe = log.validations[-1].evidence[2] if log.validations else ""
    if log.promoted is not None:
        return log.promoted, log.promoted.payload["artifact_hash"], recipe
    if log.validations:
        return log.validations[-1], log.validations[-1].evidence[1], recipe
    measured = [one for one in log.evaluations if len(one.evidence) == 3]
    best = max(measured, key=lambda one: one.payload["metric_set"]["outcome"], default=None)
    if best is None or best.payload["metric_set"]["outcome"] <= 0:
        return None
    return best, best.evidence[1], best.evidence[2]


def _metrics(packet: LoggedPacket, judged: Judged | None) -> JsonObject:
    if judged is None:
        return {"measured_on": "held-out rows", "gates": dict(packet.payload["metric_set"])}
    return {
        "measured_on": f"{judged.rows} untouched rows",
        "loss_name": judged.loss_name,
        "loss": judged.loss,
        "baseline_loss": judged.baseline_loss,
        "gates": judged.gates,
    }


REPORT_FILE = "report.html"


async def collect_outcome(
    pool: asyncpg.Pool, artifacts: ArtifactStore, run_id: str, out_dir: Path, workbench: Workbench
) -> Outcome:
    """Read a finished run from the log, write its files to a folder, and sum it up.

    Writes `report.html`, and for a promoted model `model.skops` (a scikit-learn pipeline; skops reads it) and
    `model.json`, also `all_rows.*`; for one that the gate refused `candidate.skops` and `candidate.json`.

    Raises:
        ArtifactError: an artifact that the log names cannot be read.
        ContextStoreError, MemoryStoreError: what the memory holds of the run cannot be read.
    """
    loading = asyncio.create_task(asyncio.to_thread(_load_page))
    log = await read_run(pool, run_id)
    judged = await _judged(log, artifacts)
    await asyncio.to_thread(out_dir.mkdir, parents=True, exist_ok=True)
    saved = await save_model(log, artifacts, judged, out_dir)
    model_file = saved if log.promoted is not None else None
    state, reason, failed = _ending(log)
    outcome = Outcome(
        run_id=run_id,
        state=state,
        reason=None if model_file else reason,
        failed_gates=failed,
        judged=judged,
        model_file=model_file,
        report_file=out_dir / REPORT_FILE,
        generations=len({(one.round, one.generation) for one in log.evaluations}),
        transfers=log.transfers,
        packets_logged=sum(log.counts.values()),
        packets_refused=log.refused,
        candidate_file=None if model_file else saved,
        all_rows_file=await save_all_rows(log, artifacts, out_dir),
        facts=log.facts,
        review=await review_of(log, artifacts, workbench),
        profile=await _profile(log, artifacts),
        failures=() if model_file or judged is None else failures_of(judged.gates, failed),
        used_priors=log.used_priors,
        repeat=repeat_options(log),
    )
    narrative = await narrative_of(pool, log)
    await loading
    from apc_automl.report.page import write_report

    await asyncio.to_thread(write_report, log, outcome, narrative)
    return outcome


def _load_page() -> None:
    """Load matplotlib, which takes a second or two, while the training processes review the model."""
    import apc_automl.report.page  # noqa: F401


async def narrative_of(pool: asyncpg.Pool, log: RunLog) -> Narrative | None:
    """Return what the librarian noted of the run's session.

    None for who may read the log and not the memory of agents.
    """
    memory = PostgresMemoryStore(pool)
    try:
        found = [await read_narrative(memory, session_id) for session_id in log.session_ids]
    except asyncpg.InsufficientPrivilegeError:
        return None
    return next((narrative for narrative in found if narrative is not None), None)


async def _profile(log: RunLog, artifacts: ArtifactStore) -> dict[str, Any] | None:
    name = log.brief.get(TABLE_PROFILE)
    return None if name is None else json.loads(await artifacts.get(name))


async def _judged(log: RunLog, artifacts: ArtifactStore) -> Judged | None:
    if not log.validations:
        return None
    validation = log.validations[-1]
    document_hash, model_hash, recipe_hash, *_ = validation.evidence
    document = json.loads(await artifacts.get(document_hash))
    return Judged(
        swarm=_swarm_of(log, validation),
        recipe=Recipe.read(await artifacts.get(recipe_hash)),
        model_hash=model_hash,
        outcome=validation.payload["metric_set"]["outcome"],
        loss_name=document["loss_name"],
        loss=document["loss"],
        baseline_loss=document["baseline_loss"],
        rows=document["rows_judged"],
        gates=dict(validation.payload["metric_set"]),
        score=str(document.get("score", "")),
    )


def _swarm_of(log: RunLog, validation: LoggedPacket) -> str:
    artifact = validation.body["trace"]["parent_packet_id"]
    return next((one.swarm for one in log.of("ARTIFACT") if str(one.packet_id) == artifact), "")


def _ending(log: RunLog) -> tuple[str, str | None, tuple[str, ...]]:
    """Return (last state, why it ended there, gates that the last judged model failed)."""
    if not log.moves:
        return "UNKNOWN", "the log holds no session of this run", ()
    last = log.moves[-1]
    reason = str(last.facts.get("reason", f"the session stands in {last.to_state}"))
    failed: tuple[str, ...] = ()
    for move in log.moves:
        words = str(move.facts.get("reason", "")).split()
        if words[:1] == ["VALIDATION_FAILED"]:
            failed = tuple(words[1:])
        elif move.event == "validation_fail_or_drift":
            failed = tuple(move.facts.get("failed", ()))
    if reason == "NOTHING_BEATS_BASELINE":
        failed = ("outcome",)
    return last.to_state, reason, failed


def repeat_options(log: RunLog) -> tuple[str, ...]:
    """Return the options that fix the sizes of a run, so that another machine makes the same search.

    Empty when the budget ended a search whose model was refused, or a later round: no options say that.
    """
    sizes, evaluations = log.sizes, log.evaluations
    if not sizes or not evaluations:
        return ()
    asked = sizes["generation_limit"] + 1 + sizes["convergence_generations"]
    most = sizes["max_rounds"]
    rounds = max(one.round for one in evaluations)
    last = 1 + max(one.generation for one in evaluations if one.round == rounds)
    if last >= asked:
        return _sizes(log, asked, sizes["convergence_generations"])
    if rounds > 1 or (most > 1 and log.promoted is None):
        return ()
    converged = len({one.generation for one in evaluations if one.run_phase == "CONVERGENCE"})
    return _sizes(log, last, converged)


def _sizes(log: RunLog, generations: int, convergence: int) -> tuple[str, ...]:
    options = {
        "--generations": generations,
        "--candidates": log.candidates,
        "--convergence": convergence,
        "--rounds": log.sizes["max_rounds"],
    }
    return tuple(word for name, value in options.items() for word in (name, str(value)))


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
