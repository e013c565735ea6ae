import { describe, expect, it } from "vitest";
import { formFields, refusedField, written } from "../../src/lib/form";

const SCHEMA = {
  $defs: { Reason: { enum: ["broken", "late"], title: "Reason", type: "string" } },
  properties: {
    amount: { format: "decimal", maximum: 500, minimum: 0, title: "Amount", type: "string", description: "In euros." },
    due: { format: "date", title: "Due", type: "string" },
    count: { type: "integer", title: "Count", minimum: 1 },
    share: { anyOf: [{ type: "number", exclusiveMaximum: 1 }, { type: "null" }], default: null, title: "Share" },
    is_urgent: { type: "boolean", title: "Is Urgent" },
    reason: { $ref: "#/$defs/Reason", default: "late" },
    note: { anyOf: [{ type: "string", maxLength: 5 }, { type: "null" }], default: null, title: "Note" },
    tags: { items: { type: "string" }, type: "array", default: [], title: "Tags" },
    at: { format: "date-time", type: "string", title: "At" },
    place: { type: "object", properties: { street: { type: "string" } }, title: "Place" },
  },
  required: ["amount", "due", "count", "is_urgent"],
  "x-order": ["amount", "due", "count", "share", "is_urgent", "reason", "note", "tags", "at", "place"],
};
const FIELDS = formFields(SCHEMA);
const FILLED = new Map([["amount", "80.50"], ["due", "2026-12-01"], ["count", "2"], ["is_urgent", "no"]]);

describe("the form of an answer", () => {
  it("has a field for each kind that can be drawn, and JSON for the rest", () => {
    expect(FIELDS.map((one) => one.input)).toEqual(["decimal", "date", "integer", "number", "yes", "choice", "text", "list", "time", "json"]);
    expect(FIELDS.map((one) => one.isNeeded)).toEqual([true, true, true, false, true, false, false, false, false, false]);
    expect([FIELDS[0]!.about, FIELDS[5]!.initial, FIELDS[4]!.label]).toEqual(["In euros.", "1", "Is urgent"]);
  });

  it("becomes the answer: a decimal stays the text that it is, what is empty is left out", () => {
    expect(written(FIELDS, FILLED)).toEqual({ answer: { amount: "80.50", due: "2026-12-01", count: 2, is_urgent: false, reason: "late" }, faults: new Map() });
    const more = new Map([...FILLED, ["reason", "0"], ["share", "0.5"], ["tags", " a \n\nb"], ["at", "2026-12-01T10:00:00Z"], ["place", '{"street":"x"}']]);
    expect(written(FIELDS, more).answer).toMatchObject({ reason: "broken", share: 0.5, tags: ["a", "b"], at: "2026-12-01T10:00:00.000Z", place: { street: "x" } });
  });

  it.each([["amount", "1e3"], ["amount", "501"], ["amount", "-1"], ["count", "1.5"], ["count", "0"], ["share", "1"], ["note", "longer"], ["place", "{"], ["due", ""], ["is_urgent", ""]])("says at the field why %s = %j cannot be sent", (name, text) => {
    expect([...written(FIELDS, new Map([...FILLED, [name, text]])).faults.keys()]).toEqual([name]);
  });

  it("finds the field of a refusal", () => {
    expect(["answer.amount", "answer.tags[1]", "answer.place.street", "answer", "seen", undefined].map((one) => refusedField(FIELDS, one))).toEqual(["amount", "tags", "place", null, null, null]);
  });

  it("takes a field of any name", () => {
    const fields = formFields(JSON.parse('{"properties": {"__proto__": {"type": "string"}, "constructor": {"type": "integer"}}, "required": ["__proto__"]}'));
    const { answer } = written(fields, new Map([["__proto__", "x"], ["constructor", "1"]]));
    expect(JSON.stringify(answer)).toBe('{"__proto__":"x","constructor":1}');
  });
});
