/** A conversation as its stream tells it: `state` replaces everything, `text` adds to the response. */
import type { Schemas } from "../api/client";
import { plural } from "../lib/format";

export type ChatState = Schemas["ChatState"];
export type ChatEvent = { event: "state"; data: ChatState } | { event: "text"; data: Schemas["ChatText"] };

export function reduceChat(state: ChatState | null, event: ChatEvent): ChatState | null {
  if (event.event === "state") return event.data;
  if (!state?.answer) return state;
  return { ...state, answer: { ...state.answer, text: state.answer.text + event.data.delta } };
}

/** The conversation as a file that people read. */
export function toMarkdown(history: Schemas["ChatHistory"]): string {
  const lines = [`# Conversation with ${history.agent}`, ""];
  if (history.dropped > 0) lines.push(`_${history.dropped} older messages are no longer kept._`, "");
  for (const one of history.messages) {
    lines.push(`## ${one.role === "user" ? "You" : history.agent}, ${String(one.timestamp)}`, "", String(one.content), "");
  }
  return lines.join("\n");
}

/** What the agent is told of the conversation. */
export function seen(state: Pick<ChatState, "props" | "hidden" | "shortened">): string {
  if (state.props.status === "thinking") return "The agent is thinking.";
  const parts = [];
  if (state.shortened > 0) parts.push(`${plural(state.shortened, "earlier turn")} shortened`);
  if (state.hidden > 0) parts.push(`${plural(state.hidden, "earlier turn")} not at all`);
  return parts.length === 0 ? "The agent sees the whole conversation." : `The agent sees ${parts.join(" and ")}.`;
}

/** The messages of the history that the window does not hold. */
export function earlier(history: Schemas["ChatHistory"], messages: ChatState["props"]["messages"]): Schemas["ChatHistory"]["messages"] {
  const held = new Set(messages.map((one) => one.id));
  return history.messages.filter((one) => !held.has(String(one.id)));
}
