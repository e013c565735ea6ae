/** What a packet says, in one or two sentences. */
import { plain, plural, score, shortId } from "./format";

type Json = Record<string, unknown>;

const text = (value: unknown): string => (typeof value === "string" ? value : "");
/** Hashes are shortened: their full text is in the JSON. */
const short = (words: string): string => words.replace(/\b[0-9a-f]{64}\b/g, (hash) => `${hash.slice(0, 8)}…`);
const list = (value: unknown): Json[] => (Array.isArray(value) ? value.filter((one): one is Json => typeof one === "object" && one !== null) : []);
const texts = (value: unknown): string[] => (Array.isArray(value) ? value.filter((one): one is string => typeof one === "string") : []);
/** A candidate by a short name; the candidate "none" stands for choosing nobody. */
export const nobody = (candidate: string): string => (candidate === "none" ? "nobody" : shortId(candidate));
const number = (value: unknown): number | null => (typeof value === "number" ? value : null);

const SAYS: Record<string, (payload: Json) => string> = {
  TASK_IR: (payload) => list(payload.objects).filter((one) => one.type === "Claim").map((one) => text(one.text)).join("\n"),
  IDEA: (payload) => text(payload.intent),
  CLAIM: (payload) => text(payload.text),
  ARTIFACT: (payload) => `${plain(text(payload.artifact_kind))} ${text(payload.artifact_id)}`,
  EVAL: (payload) => [`Outcome ${score(number((payload.metric_set as Json | undefined)?.outcome))}, ${payload.pass ? "passed" : "did not pass"}`, ...texts(payload.notes)].join("\n"),
  TRANSFER: (payload) => `Offers ${text(payload.protocol_id)} from ${text(payload.from_swarm)} (${score(number(payload.sender_score))}) to ${text(payload.to_swarm)} (${score(number(payload.receiver_score))})`,
  ARBITRATION: (payload) => `Chose ${nobody(text(payload.winner_candidate_id))} among ${plural(list(payload.candidates).length, "candidate")}`,
  DECISION: (payload) => [text(payload.recommendation), texts(payload.next_actions).length > 0 ? `then ${texts(payload.next_actions).join(", ")}` : ""].filter(Boolean).join(", "),
  MESSAGE: (payload) => [text(payload.schema), text(payload.text)].filter(Boolean).join(": "),
  RETRACTION: (payload) => text(payload.reason),
  ERROR: (payload) => `${text(payload.error_code)}: ${text(payload.message)}`,
};

/** A signal with its reason, what it asks, or what it answers. */
function signalWords(payload: Json): string {
  const { question, answer } = payload as { question?: Json; answer?: Json };
  return [text(payload.signal), text(payload.reason), text(question?.text), text(answer?.outcome), text(answer?.note)].filter(Boolean).join(": ");
}

/** The gist of a packet's document; empty where there is nothing to say. */
export function gistOf(type: string, document: unknown): string {
  const payload = (document as { payload?: Json } | null)?.payload;
  if (typeof payload !== "object" || payload === null) return "";
  const say = SAYS[type];
  return short(say ? say(payload) : signalWords(payload));
}
