/** What there is to say about a session, the worst first; and which states it passed. Every function is pure. */
import type { Schemas } from "../api/client";
import { plain, plural } from "./format";
import { stateWord, type Tone } from "./words";

type Detail = Schemas["SessionDetail"];

export interface Fact {
  tone: Tone;
  words: string;
  /** Where it is shown in full. */
  view?: "dead" | "refused";
}

/** The facts of a session, the worst first: nothing good stands before what went wrong. */
export function factsOf(detail: Detail): Fact[] {
  const facts: Fact[] = [];
  const say = (tone: Tone, words: string, view?: Fact["view"]): void => void facts.push({ tone, words, ...(view && { view }) });
  if (detail.state === "HALTED") say("bad", haltWords(detail));
  if (detail.failed_verifications > 0) say("bad", plural(detail.failed_verifications, "failed verification"));
  if (detail.dead > 0) say("bad", plural(detail.dead, "dead letter"), "dead");
  if (detail.stale_decisions.length > 0) say("warn", plural(detail.stale_decisions.length, "stale decision"));
  if (detail.refused_usage > 0) say("warn", `${plural(detail.refused_usage, "report")} of usage refused`);
  const refused = detail.refusals.reduce((sum, one) => sum + one.count, 0);
  const isSound = facts.length === 0;
  if (!detail.is_terminal) say(detail.is_paused ? "warn" : "accent", detail.is_paused ? `Paused in ${stateWord(detail.state)}` : stateWord(detail.state));
  else if (detail.state !== "HALTED") say(isSound ? "good" : "neutral", isSound ? stateWord(detail.state) : `${stateWord(detail.state)}, open to doubt`);
  if (refused > 0) say("neutral", `${plural(refused, "packet")} refused`, "refused");
  return facts;
}

/** Why a session halted, in a few words; a viewer reads no exceptions. */
function haltWords(detail: Detail): string {
  const failure = detail.failures[0];
  if (failure?.is_halted && failure.exception_type) return `Halted: ${failure.exception_type} at ${failure.recipient}`;
  const reason = detail.halt_reason?.split(" ")[0] ?? "";
  return reason ? `Halted: ${plain(reason).toLowerCase()}` : "Halted";
}

const HALTS: Record<string, string> = {
  STATE_DEADLINE: "A state did not end before its deadline.",
  BUDGET_EXHAUSTED: "Its budget was used up.",
  NO_LIVE_SWARM: "Every swarm missed its barriers.",
  VALIDATION_FAILED: "The validation did not pass the promotion gate in the last round.",
  NOTHING_BEATS_BASELINE: "No candidate was better than doing nothing.",
  STALLED: "For a minute nothing was open from which a packet could follow.",
  HANDLER_FAILED: "A handler failed.",
  STOP: "An operator stopped it.",
  CANCEL: "An operator cancelled it.",
};

/** What the reason of a halt means, and what it says beside: texts, and ids of packets to link. */
export interface Halt {
  words: string;
  code: string;
  parts: { text: string; isPacket: boolean }[];
}

export function haltOf(reason: string): Halt {
  const [, code = "", rest = ""] = /^([A-Z_]+)(?: (.*))?$/s.exec(reason) ?? ["", "", reason];
  const words = HALTS[code] ?? "";
  const parts = rest.split(/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/).map((text, at) => ({ text, isPacket: at % 2 === 1 }));
  return { words, code, parts: parts.filter((one) => one.text !== "") };
}

/** done: it was entered and left; here: the session is in it; stopped: the last one before it halted; next: never entered. */
export type StatePlace = "done" | "here" | "stopped" | "next";

export interface PlacedState {
  name: string;
  run_phase: string | null;
  place: StatePlace;
}

/** The states of a session's machine with what it passed until entry `until`; HALTED is drawn where it was entered. */
export function placesOfStates(detail: Pick<Detail, "machine" | "entered">, here: string, until?: number): PlacedState[] {
  const entered = detail.entered.filter((one) => until === undefined || one.seq <= until).map((one) => one.name);
  const known = new Set(entered);
  const last = here === "HALTED" ? entered.filter((name) => name !== "HALTED").at(-1) : undefined;
  return detail.machine.states
    .filter((state) => state.name !== "HALTED" || here === "HALTED")
    .map((state) => ({ name: state.name, run_phase: state.run_phase, place: state.name === here ? "here" : state.name === last ? "stopped" : known.has(state.name) ? "done" : "next" }));
}
