import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Schemas } from "../../src/api/client";
import { Hub, MOST_UNTAKEN } from "../../src/live/hub";
import type { Scope, StreamHandlers } from "../../src/live/stream";

const entry = (session_id: string, seq = 1) => ({ session_id, seq }) as Schemas["FoldEntry"];

/** Streams as the server would give them: those that are open, and where each began. */
function server() {
  const opened: { scope: Scope; since: string | null; handlers: StreamHandlers; isOpen: boolean }[] = [];
  const hub = new Hub(
    (scope, handlers, _headers, since = null) => {
      const stream = { scope, since, handlers, isOpen: true };
      opened.push(stream);
      return {
        end: () => {
          stream.isOpen = false;
          return `after ${opened.length}`;
        },
      };
    },
    () => ({}),
  );
  const last = () => opened.at(-1)!;
  const live = () => {
    last().handlers.state("live");
    if (last().since === null) last().handlers.reset();
  };
  return { hub, opened, last, live, open: () => opened.filter((one) => one.isOpen) };
}

function tab() {
  const seen = { states: [] as string[], resets: 0, entries: [] as Schemas["FoldEntry"][] };
  const handlers: StreamHandlers = { state: (state) => seen.states.push(state), reset: () => (seen.resets += 1), entries: (items) => seen.entries.push(...items) };
  return { seen, handlers };
}

describe("the one stream of a browser", () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  it("is shared by tabs of one session, and each loads once what came before", () => {
    const { hub, opened, live, last } = server();
    const [one, other] = [tab(), tab()];
    hub.join({ session_id: "a" }, one.handlers);
    live();
    hub.join({ session_id: "a" }, other.handlers);
    last().handlers.entries([entry("a")]);
    expect(opened).toHaveLength(1);
    expect([one.seen.resets, other.seen.resets]).toEqual([1, 1]);
    expect([one.seen.entries.length, other.seen.entries.length]).toEqual([1, 1]);
    expect(other.seen.states).toEqual(["live"]);
  });

  it("widens where the narrow one ended, and gives each tab what it asked for", () => {
    const { hub, open, live, last } = server();
    const [one, other, all] = [tab(), tab(), tab()];
    hub.join({ session_id: "a" }, one.handlers);
    live();
    hub.join({ session_id: "b" }, other.handlers);
    hub.join({}, all.handlers);
    live();
    last().handlers.entries([entry("a"), entry("b"), entry("c")]);
    expect(open().map(({ scope, since }) => [scope, since])).toEqual([[{}, "after 2"]]);
    expect([one, other, all].map(({ seen }) => seen.entries.map((item) => item.session_id))).toEqual([["a"], ["b"], ["a", "b", "c"]]);
    expect([one.seen.resets, other.seen.resets, all.seen.resets]).toEqual([1, 1, 1]);
  });

  it("narrows and ends after the tabs that left, and stays for the next page of a tab", () => {
    const { hub, open, opened, live } = server();
    const [one, other] = [hub.join({ session_id: "a" }, tab().handlers), hub.join({}, tab().handlers)];
    live();
    other.leave();
    vi.advanceTimersByTime(2_000);
    expect(open().map(({ scope }) => scope)).toEqual([{ session_id: "a" }]);
    live();
    one.leave();
    const next = hub.join({ session_id: "a" }, tab().handlers);
    vi.advanceTimersByTime(2_000);
    expect(open()).toHaveLength(1);
    const before = opened.length;
    next.leave();
    vi.advanceTimersByTime(2_000);
    expect(open()).toHaveLength(0);
    expect(opened).toHaveLength(before);
  });

  it("connects at once when a page opens while the server is away", () => {
    const { hub, open, opened, live, last } = server();
    hub.join({}, tab().handlers);
    live();
    last().handlers.state("waiting");
    const late = tab();
    hub.join({}, late.handlers);
    expect([opened.length, open().length]).toEqual([2, 1]);
    live();
    expect(late.seen).toMatchObject({ states: ["live"], resets: 1 });
  });

  it("lets a frozen tab load everything again instead of keeping its messages", () => {
    const { hub, live, last } = server();
    const frozen = tab();
    const { taken } = hub.join({}, frozen.handlers);
    live();
    for (let seq = 0; seq < MOST_UNTAKEN + 50; seq += 1) last().handlers.entries([entry("a", seq)]);
    expect(frozen.seen.entries).toHaveLength(MOST_UNTAKEN);
    for (let message = 0; message < MOST_UNTAKEN; message += 1) taken();
    expect(frozen.seen.resets).toBe(2);
    last().handlers.entries([entry("a", 999)]);
    expect(frozen.seen.entries.at(-1)!.seq).toBe(999);
  });
});
