/** The verification of the log in words. Every function is pure. */
import type { Schemas } from "../api/client";
import { count, plural, sentence } from "./format";

export type Verification = Schemas["LogVerification"];
type Finding = Schemas["VerificationFinding"];

/** Findings in the order of the log; those about no single shard come last. */
export function inOrder(findings: readonly Finding[]): Finding[] {
  const shard = (one: Finding) => one.shard ?? Number.MAX_SAFE_INTEGER;
  return [...findings].sort((one, other) => shard(one) - shard(other) || one.seq - other.seq);
}

/** Where a finding is: "Shard 0, entry 12", with the row where it is not the entry itself. */
export function placeWords(one: Finding): string {
  const at = one.shard === null ? "" : `Shard ${one.shard}, `;
  const entry = `entry ${count(one.seq)}`;
  const where = one.place === `entry ${one.seq}` ? entry : one.seq > 0 ? `${one.place} (from ${entry})` : one.place;
  return at ? at + where : sentence(where).slice(0, -1);
}

/** How many there are, those that are not listed too. */
export function findingsOf(job: Verification): number {
  return (job.findings?.length ?? 0) + (job.unlisted ?? 0);
}

export interface Told {
  tone: "good" | "bad" | "neutral";
  words: string;
}

/** What became of the verification; null while there is nothing to tell. */
export function outcome(job: Verification): Told | null {
  if (job.state === "failed") return { tone: "bad", words: `The verification failed, and says nothing of the log: ${job.words ?? "no reason was given"}.` };
  if (job.state === "cancelled") return { tone: "neutral", words: `Cancelled after ${count(job.entries)} of ${plural(job.total, "entry", "entries")}: nothing is known of the rest.` };
  if (job.state !== "done") return null;
  if (job.is_whole) return { tone: "good", words: `The log is whole: ${plural(job.entries, "entry fits", "entries fit")} tree, checkpoints and sessions.` };
  const first = inOrder(job.findings ?? [])[0];
  const where = first ? ` The first: ${placeWords(first)}. ${sentence(first.message)}` : "";
  return { tone: "bad", words: `The log is not whole: ${plural(findingsOf(job), "finding")}.${where}` };
}

/** How far it is, from 0 to 1, and in words. */
export function progress(job: Verification): { share: number; words: string } {
  if (job.total === 0) return { share: 0, words: "Begins" };
  const done = job.entries >= job.total;
  return { share: job.entries / job.total, words: done ? "Compares sessions and derived tables" : `${count(job.entries)} of ${plural(job.total, "entry", "entries")} recomputed` };
}
