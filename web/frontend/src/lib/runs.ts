/** What a run is called, and how long it took. Every function is pure. */
import type { Schemas } from "../api/client";

type Run = Schemas["RunSummary"];

/** Team and title of a run; a run without a team is named by its contract, when it has a title. */
export function nameOf(run: Pick<Run, "team" | "title" | "contract">): { team: string | null; title: string | null } {
  return { team: run.team ?? (run.title ? null : run.contract), title: run.title };
}

/** Milliseconds from its start to its end; null while it goes on. */
export function lengthOfRun(run: Pick<Run, "opened_at" | "ended_at">): number | null {
  return run.ended_at ? Math.max(0, Date.parse(run.ended_at) - Date.parse(run.opened_at)) : null;
}
