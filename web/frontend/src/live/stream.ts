/** The live stream: server-sent events by fetch, because EventSource cannot send the token. */
import type { Schemas } from "../api/client";

/** away: the server answers, and its database does not. */
export type StreamState = "live" | "waiting" | "away" | "off";

/** Entries of one session, or of everything. */
export interface Scope {
  session_id?: string;
}

export interface StreamHandlers {
  entries(items: Schemas["FoldEntry"][]): void;
  /** The client fell too far behind: load everything again. */
  reset(): void;
  state(state: StreamState): void;
}

export interface ServerEvent {
  event: string;
  id: string | null;
  data: string;
}

/** Split a text of server-sent events; returns whole events and the rest that waits for more. */
export function readEvents(text: string): { events: ServerEvent[]; rest: string } {
  const blocks = text.replaceAll("\r\n", "\n").split("\n\n");
  const rest = blocks.pop()!;
  const events = blocks.flatMap((block) => {
    const event: ServerEvent = { event: "message", id: null, data: "" };
    const data: string[] = [];
    for (const line of block.split("\n")) {
      const cut = line.indexOf(":");
      if (cut <= 0) continue;
      const value = line.slice(cut + 1).replace(/^ /, "");
      const name = line.slice(0, cut);
      if (name === "event") event.event = value;
      else if (name === "id") event.id = value;
      else if (name === "data") data.push(value);
    }
    event.data = data.join("\n");
    return data.length > 0 ? [event] : [];
  });
  return { events, rest };
}

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 15_000;
/** The server says something every 15 s. After so long without a word the connection is dead, as after a sleep of the computer. */
const SILENCE = 45_000;
const LOOK = 5_000;

export interface Following {
  /** End it; returns the id of the last event, where another stream can go on. */
  end(): string | null;
}

export type Follow = (scope: Scope, handlers: StreamHandlers, headers: () => Record<string, string>, since?: string | null) => Following;

/** Follow the entries of `scope` behind the event `since`, or from now on; resumes without gap or repeat. */
export const follow: Follow = (scope, handlers, headers, since = null) => {
  const ended = new AbortController();
  let lastId: string | null = since;
  let pause = FIRST_PAUSE;
  let heard = Date.now();
  let connection = new AbortController();
  const watch = setInterval(() => {
    if (Date.now() - heard > SILENCE) connection.abort();
  }, LOOK);

  function take(event: ServerEvent): void {
    if (ended.signal.aborted) return;
    if (event.id) lastId = event.id;
    if (event.event === "entries") handlers.entries((JSON.parse(event.data) as Schemas["StreamEntries"]).items);
    if (event.event === "reset") handlers.reset();
    if (event.event === "state") handlers.state((JSON.parse(event.data) as Schemas["StreamState"]).is_readable ? "live" : "away");
  }

  /** Follow one connection to its end; returns whether the database is away. */
  async function once(): Promise<boolean> {
    const sent: Record<string, string> = { Accept: "text/event-stream", ...headers() };
    if (lastId) sent["Last-Event-ID"] = lastId;
    const given = new URLSearchParams(scope as Record<string, string>);
    connection = new AbortController();
    heard = Date.now();
    const response = await fetch(`/api/v1/stream?${given}`, { headers: sent, signal: AbortSignal.any([ended.signal, connection.signal]) });
    if (response.status === 503) return true;
    if (!response.ok || !response.body) throw new Error(`stream: ${response.status}`);
    handlers.state("live");
    // What came while there was no stream is in the answers of the other routes.
    if (lastId === null) handlers.reset();
    pause = FIRST_PAUSE;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      heard = Date.now();
      if (done) return false;
      const found = readEvents(rest + value);
      rest = found.rest;
      found.events.forEach(take);
    }
  }

  async function keep(): Promise<void> {
    while (!ended.signal.aborted) {
      const isAway = await once().catch(() => false);
      if (ended.signal.aborted) return;
      handlers.state(isAway ? "away" : "waiting");
      await new Promise((resolve) => setTimeout(resolve, pause * (0.75 + Math.random() / 2)));
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  }
  void keep();
  return {
    end() {
      clearInterval(watch);
      ended.abort();
      return lastId;
    },
  };
};
