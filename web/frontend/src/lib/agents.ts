/** A registered agent in words. Every function is pure. */
import type { Schemas } from "../api/client";
import { count } from "./format";
import type { Tone } from "./words";

export type Agent = Schemas["AgentSummary"];
export type AgentState = "alive" | "silent" | "revoked" | "person";

export function stateOf(agent: Agent): AgentState {
  if (agent.is_revoked) return "revoked";
  if (agent.kind === "person") return "person";
  return agent.is_alive ? "alive" : "silent";
}

export const STATE_TONES: Record<AgentState, Tone> = { alive: "good", silent: "neutral", revoked: "bad", person: "neutral" };

export const STATE_HINTS: Record<AgentState, string> = {
  alive: "Its host runs, or it was heard of within 90 seconds",
  silent: "Its host is gone, or it was not heard of within 90 seconds; a program without heartbeats is silent while it has nothing to say",
  revoked: "The gate refuses what it sends",
  person: "A person has no inbox and no heartbeat",
};

/** "10,000 a second": packets that the gate admits. */
export function rateWords(agent: Agent): string {
  if (!agent.quota) return "no quota";
  const rate = agent.quota.packets_per_second;
  return rate >= 1 ? `${count(rate)} a second` : `one every ${count(Math.round(1 / rate))} s`;
}

/** The same with how many may come at once. */
export function quotaWords(agent: Agent): string {
  return agent.quota ? `${rateWords(agent)}, ${count(agent.quota.burst)} at once` : rateWords(agent);
}

/** The share of the deliveries that an agent may have open, and how it looks. */
export function loadOf(agent: Agent): { share: number; tone: "" | "warn" | "bad" } {
  const share = Math.min(1, agent.open_deliveries / Math.max(1, agent.most_open));
  return { share, tone: share >= 1 ? "bad" : share > 0.8 ? "warn" : "" };
}

/** Whether something waits in its queues that no process takes. */
export function isStuck(agent: Agent): boolean {
  return agent.consumers === 0 && (agent.waiting ?? 0) > 0;
}

/** Queue figures in words; null is unknown, and never 0. */
export function queueWords(agent: Agent): string {
  if (agent.kind === "person") return "has no queue";
  if (agent.waiting == null || agent.consumers == null) return "unknown";
  const readers = agent.consumers === 0 ? "no process reads them" : agent.consumers === 1 ? "1 process reads them" : `${count(agent.consumers)} processes read them`;
  return `${count(agent.waiting)} waiting; ${readers}`;
}
