/** A conversation as its stream tells it: `state` replaces everything, `text` adds to the response. */
import type { Schemas } from "../api/client";

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
