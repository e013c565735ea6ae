import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { hearClock, serverNow } from "../../src/lib/clock";

const NOW = Date.parse("2026-01-01T12:00:00Z");
beforeEach(() => void vi.useFakeTimers({ now: NOW }));
afterEach(() => {
  hearClock(new Date(NOW).toUTCString(), NOW, NOW);
  vi.useRealTimers();
});

it("takes the server's time where the browser's is wrong", () => {
  hearClock("Thu, 01 Jan 2026 15:00:00 GMT", NOW, NOW);
  expect(serverNow() - NOW).toBe(3 * 3_600_000 + 500);
  hearClock("Thu, 01 Jan 2026 09:00:00 GMT", NOW, NOW);
  expect(serverNow() - NOW).toBe(-3 * 3_600_000 + 500);
});

it("keeps the browser's time where they agree, an answer was slow, or no time came", () => {
  for (const [date, asked] of [["Thu, 01 Jan 2026 12:00:02 GMT", NOW], ["Thu, 01 Jan 2026 11:59:56 GMT", NOW - 8_000], [null, NOW], ["yesterday", NOW]] as const) {
    hearClock(date, asked, NOW);
    expect(serverNow()).toBe(NOW);
  }
});
