import { describe, expect, it } from "vitest";
import { factsOf, haltOf, placesOfStates } from "../../src/lib/outcome";

type Detail = Parameters<typeof factsOf>[0];

const machine = { states: ["SESSION_OPEN", "WORKING", "REVIEW", "CLOSED", "HALTED"].map((name) => ({ name, run_phase: null, is_terminal: false })), edges: [] };
const entered = [{ name: "SESSION_OPEN", seq: 0 }, { name: "WORKING", seq: 5 }, { name: "HALTED", seq: 9 }];
const sound = { state: "CLOSED", is_terminal: true, is_paused: false, halt_reason: null, failures: [], dead: 0, failed_verifications: 0, refused_usage: 0, stale_decisions: [], refusals: [] };
const detail = (changes: object): Detail => ({ ...sound, ...changes }) as unknown as Detail;
const said = (changes: object) => factsOf(detail(changes)).map((one) => `${one.tone}: ${one.words}`);

describe("the facts of a session", () => {
  it("stand with the worst first, and nothing is green beside what went wrong", () => {
    const all = { failed_verifications: 1, dead: 2, stale_decisions: [{}], refused_usage: 3, refusals: [{ name: "A", count: 4 }] };
    expect(said(all)).toEqual(["bad: 1 failed verification", "bad: 2 dead letters", "warn: 1 stale decision", "warn: 3 reports of usage refused", "neutral: Closed, open to doubt", "neutral: 4 packets refused"]);
    for (const name of ["failed_verifications", "dead", "refused_usage"]) expect(said({ [name]: 1 }).join()).not.toContain("good");
    expect(said({ stale_decisions: [{}] }).join()).not.toContain("good");
  });

  it("are green where nothing went wrong, and refusals alone are no fault", () => {
    expect(said({})).toEqual(["good: Closed"]);
    expect(said({ refusals: [{ name: "A", count: 1 }] })).toEqual(["good: Closed", "neutral: 1 packet refused"]);
  });

  it("name the exception and the agent of a halt, or its reason for a viewer", () => {
    const halted = { state: "HALTED", halt_reason: "HANDLER_FAILED a could not handle MESSAGE x", failures: [{ is_halted: true, exception_type: "KeyError", recipient: "a" }] };
    expect(said(halted)).toEqual(["bad: Halted: KeyError at a"]);
    expect(said({ ...halted, failures: [{ is_halted: true, exception_type: null, recipient: "a" }] })).toEqual(["bad: Halted: handler failed"]);
    expect(said({ ...halted, halt_reason: null, failures: [] })).toEqual(["bad: Halted"]);
  });

  it("say where a session is that goes on", () => {
    expect([said({ state: "WORKING", is_terminal: false }), said({ state: "WORKING", is_terminal: false, is_paused: true })]).toEqual([["accent: Working"], ["warn: Paused in Working"]]);
  });
});

describe("the reason of a halt", () => {
  const id = "f092d4a9-4eb7-5395-8de4-16f47131ed60";

  it("is told in words, with the packet that it names as a link", () => {
    const halt = haltOf(`STALLED nothing is open; the last end: packet ${id} at cashier`);
    expect([halt.words, halt.code]).toEqual(["For a minute nothing was open from which a packet could follow.", "STALLED"]);
    expect(halt.parts).toEqual([{ text: "nothing is open; the last end: packet ", isPacket: false }, { text: id, isPacket: true }, { text: " at cashier", isPacket: false }]);
  });

  it("stands as it is where it has no code or one without words", () => {
    expect(haltOf("")).toEqual({ words: "", code: "", parts: [] });
    expect(haltOf("OF_A_LATER_RELEASE why")).toEqual({ words: "", code: "OF_A_LATER_RELEASE", parts: [{ text: "why", isPacket: false }] });
    expect(haltOf("enough for today\nsays sam").parts).toEqual([{ text: "enough for today\nsays sam", isPacket: false }]);
    expect(haltOf("STOP constructor").words).toBe("An operator stopped it.");
  });
});

describe("the states of a session", () => {
  const places = (here: string, until?: number) => placesOfStates({ machine, entered }, here, until).map((one) => `${one.name} ${one.place}`);

  it("are passed only where they were entered, and a halted session marks where it stopped", () => {
    expect(places("HALTED")).toEqual(["SESSION_OPEN done", "WORKING stopped", "REVIEW next", "CLOSED next", "HALTED here"]);
  });

  it("do not show HALTED before it was entered, nor what came later than the entry that is looked at", () => {
    expect(places("WORKING", 6)).toEqual(["SESSION_OPEN done", "WORKING here", "REVIEW next", "CLOSED next"]);
    expect(places("SESSION_OPEN", 1)).toEqual(["SESSION_OPEN here", "WORKING next", "REVIEW next", "CLOSED next"]);
  });
});
