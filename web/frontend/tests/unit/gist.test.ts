import { expect, it } from "vitest";
import { gistOf } from "../../src/lib/gist";

it("tells of a signal what it asks, and what it answers", () => {
  const said = [{ signal: "STOP", reason: "lunch" }, { signal: "ASK", question: { text: "Ship build 7?" } }, { signal: "ANSWER", answer: { outcome: "approved", note: "looks right" } }, { signal: "SYNC", question: null }];
  expect(said.map((payload) => gistOf("SIGNAL", { payload }))).toEqual(["STOP: lunch", "ASK: Ship build 7?", "ANSWER: approved: looks right", "SYNC"]);
});
