/** Issues as the address has them, and in words. Every function is pure. */
import type { Schemas } from "../api/client";
import { plain } from "./format";
import { codeWord } from "./words";

export type IssueGroup = Schemas["IssueGroup"];
export type Grouping = "code" | "rule" | "agent" | "field";
export type TroubleKind = IssueGroup["kind"];

export const GROUPINGS: readonly { by: Grouping; name: string }[] = [
  { by: "code", name: "Reason" },
  { by: "rule", name: "Rule" },
  { by: "agent", name: "Agent" },
  { by: "field", name: "Field" },
];

export const KINDS: Record<TroubleKind, { one: string; many: string }> = {
  refusal: { one: "Refusal", many: "Refusals" },
  failure: { one: "Handler failed", many: "Failures" },
  dead_letter: { one: "Dead letter", many: "Dead letters" },
  verification: { one: "Verification failed", many: "Verifications" },
};

/** What tells a group apart, as the API and the address have it. */
export interface IssueKey {
  kind: TroubleKind;
  code?: string;
  rule?: string;
  field?: string;
  agent_id?: string;
}

export interface IssueSearch {
  group?: Grouping;
  kind?: TroubleKind;
  status?: "open" | "acknowledged";
  agent?: string;
  run?: string;
  /** The group that is looked at. */
  issue?: IssueKey;
}

const text = (value: unknown) => (typeof value === "string" ? value.slice(0, 1_000) : typeof value === "number" ? String(value) : undefined);
const oneOf = <Name extends string>(value: unknown, names: readonly Name[]) => names.find((name) => name === value);
const isKind = (value: unknown): TroubleKind | undefined => oneOf(value, Object.keys(KINDS) as TroubleKind[]);

export function readIssueSearch(search: Record<string, unknown>): IssueSearch {
  return {
    group: oneOf(search.group, ["rule", "agent", "field"]),
    kind: isKind(search.kind),
    status: oneOf(search.status, ["open", "acknowledged"]),
    agent: text(search.agent) || undefined,
    run: text(search.run) || undefined,
    issue: readKey(search.issue),
  };
}

function readKey(value: unknown): IssueKey | undefined {
  const found = (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
  const kind = isKind(found.kind);
  return kind && { kind, code: text(found.code), rule: text(found.rule), field: text(found.field), agent_id: text(found.agent_id) };
}

export function keyOf(group: IssueGroup): IssueKey {
  const { kind, code, rule, field, agent_id } = group;
  return { kind, code: code ?? undefined, rule: rule ?? undefined, field: field ?? undefined, agent_id: agent_id ?? undefined };
}

export const nameOf = (key: IssueKey) => [key.kind, key.code, key.rule, key.field, key.agent_id].map((one) => one ?? "*").join(" · ");

const headline = (words: string) => words.charAt(0).toUpperCase() + words.slice(1);

/** A group in plain words, with the protocol's word beside it. */
export function wordsOf(key: IssueKey): { plain: string; protocol: string } {
  if (key.agent_id !== undefined) return { plain: key.agent_id || "unknown sender", protocol: "" };
  if (key.kind === "failure") return { plain: key.rule || "Handler failed", protocol: key.code ?? "" };
  const code = key.code ?? "";
  const said = key.kind === "refusal" ? codeWord(code) : plain(code);
  return { plain: headline(said || "no code"), protocol: [code, key.rule, key.field].filter(Boolean).join(" · ") };
}
