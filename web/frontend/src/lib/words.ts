/** Plain words beside the words of the protocol. */
import { plain, shortId } from "./format";

const STATES: Record<string, string> = {
  SESSION_OPEN: "Open",
  DIFFERENTIATED_RESEARCH: "Research",
  INDEPENDENT_DISCOVERY: "Discovery",
  SELECTIVE_TRANSFER: "Transfer",
  CONTROLLED_CONVERGENCE: "Convergence",
  ARBITRATION: "Arbitration",
  EXECUTION: "Execution",
  VALIDATION: "Validation",
  PROMOTION: "Promotion",
  CLOSED: "Closed",
  HALTED: "Halted",
};

const CODES: Record<string, string> = {
  TOO_LARGE: "too large",
  TOO_DEEP: "nested too deeply",
  MALFORMED: "not readable as JSON",
  SCHEMA_INVALID: "a field is missing or wrong",
  SENDER_MISMATCH: "sent under another name",
  UNKNOWN_SENDER: "the sender is not registered",
  BAD_SIGNATURE: "the signature is missing or invalid",
  DUPLICATE_CONFLICT: "the id is taken by other content",
  EXPIRED: "expired before it was judged",
  CLOCK_SKEW: "created in the future",
  UNKNOWN_SESSION: "no such session",
  SESSION_TERMINAL: "the session has ended",
  SESSION_PAUSED: "the session is paused and full",
  NOT_AUTHORIZED: "the sender lacks the right",
  UNROUTABLE: "no such recipient",
  PHASE_MISMATCH: "named another phase",
  GENERATION_MISMATCH: "named another generation",
  PHASE_FORBIDS_TYPE: "not allowed in this phase",
  CONTENT_INVALID: "the content does not fit its schema",
  LINEAGE_REQUIRED: "the lineage is missing",
  PROOF_REQUIRED: "the evidence is missing",
  TRANSFER_WINDOW_CLOSED: "too early to transfer",
  THROTTLE_MODE: "this mode of transfer is not allowed now",
  THROTTLE_CROSS_USE_CASE: "too early to transfer to another use case",
  THROTTLE_SCORE: "not good enough to transfer",
  THROTTLE_TOP_K: "better transfers went first",
  PROTOCOL_DECAYED: "the protocol is blocked",
  NOT_RETRACTABLE: "cannot be retracted",
  DRIFT_CHECK_FAILED: "drifted from the task",
  EVIDENCE_UNKNOWN: "cites what the session has not accepted",
  RULE_FAILED: "a rule of the team does not hold",
  LOOP_DETECTED: "repeats what was said",
  QUOTA_EXCEEDED: "too many packets per second",
  OVERLOADED: "the recipient is overloaded",
  BUDGET_EXHAUSTED: "the budget is spent",
};

const STEPS: Record<string, string> = {
  CREATED: "Created",
  DRAFT: "Draft",
  NORMALIZED: "Received",
  POLICY_VALIDATED: "Allowed",
  SCHEMA_VALIDATED: "Well-formed",
  REJECTED_SCHEMA: "Refused: not well-formed",
  REJECTED_POLICY: "Refused",
  ROUTED: "Sent on",
  DELIVERED: "Delivered",
  APPLIED: "Handled",
  RETRY_SCHEDULED: "Waits for another attempt",
  DEAD_LETTERED: "Dead letter",
  EXPIRED: "Expired",
  VERIFIED: "Verified",
  SUPERSEDED: "Replaced by a newer one",
  RETRACTED: "Retracted",
  PROMOTED: "Promoted",
  ARCHIVED: "Filed",
};

const RESOURCES: Record<string, string> = { packets: "Packets", tokens: "Tokens", cost: "Cost", wall_ms: "Time" };

export function stateWord(state: string): string {
  return STATES[state] ?? plain(state);
}

export function codeWord(code: string): string {
  return CODES[code] ?? plain(code).toLowerCase();
}

/** A step of a packet's path in plain words. */
export function stepWord(state: string): string {
  return STEPS[state] ?? plain(state);
}

export function resourceWord(resource: string): string {
  return RESOURCES[resource] ?? plain(resource);
}

/** A candidate by a short name; the candidate "none" stands for choosing nobody. */
export const nobody = (candidate: string): string => (candidate === "none" ? "nobody" : shortId(candidate));

export type Tone = "good" | "warn" | "bad" | "accent" | "neutral";

export function verdictTone(verdict: string): Tone {
  return verdict === "accepted" ? "good" : verdict === "held" ? "warn" : "bad";
}

export function stateTone(state: string, isPaused = false): Tone {
  if (isPaused) return "warn";
  if (state === "CLOSED") return "good";
  return state === "HALTED" ? "bad" : "accent";
}

/** The colour of a packet type: the same on the timeline, in tables and in graphs. */
const SERIES: Record<string, number> = {
  TASK_IR: 1,
  IDEA: 7,
  CLAIM: 2,
  ARTIFACT: 8,
  EVAL: 3,
  TRANSFER: 4,
  ARBITRATION: 6,
  DECISION: 6,
  MESSAGE: 2,
};

export function typeColour(type: string): string {
  if (type === "ERROR") return "var(--bad)";
  return `var(--series-${SERIES[type] ?? 5})`;
}

export type Shape = "circle" | "square" | "diamond" | "triangle" | "bar";

const SHAPES: Record<string, Shape> = {
  TASK_IR: "square",
  ARTIFACT: "square",
  TRANSFER: "triangle",
  ARBITRATION: "diamond",
  DECISION: "diamond",
  SIGNAL: "bar",
  SYNC: "bar",
};

export function typeShape(type: string): Shape {
  return SHAPES[type] ?? "circle";
}
