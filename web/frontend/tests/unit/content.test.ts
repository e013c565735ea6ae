import { describe, expect, it } from "vitest";
import vectors from "./content_vectors.json";
import { columnsOf, currencyOf, fieldsOf, kindOf, labelOf, moneyText, numberText, resolved, titleOf, typedOf } from "../../src/lib/content";

describe("fields of a content", () => {
  it.each(vectors)("stand in the order that the server uses: $name", ({ schema, content, order }) => {
    expect(fieldsOf(content, schema, schema).map((one) => one.name)).toEqual(order);
  });

  it("have a title where the schema marks a field that says something", () => {
    const schema = { properties: { name: { "x-title": true }, text: {} } };
    expect([titleOf({ text: "a", name: "Kettle" }, schema), titleOf({ name: " " }, schema), titleOf({ name: 7 }, schema), titleOf({ text: "a" }, schema), titleOf({ name: "a" }, {})]).toEqual(["Kettle", null, null, null, null]);
  });

  it("have the title of the schema, or their name in plain words", () => {
    expect([labelOf("due_at", "Due At"), labelOf("dueAt", ""), labelOf("sum", "Total in euros"), labelOf("order", "Order")]).toEqual(["Due at", "Due at", "Total in euros", "Order"]);
    expect([labelOf("price_eur", "Price Eur"), labelOf("eur", ""), labelOf("priceUsd", "")]).toEqual(["Price EUR", "Eur", "Price USD"]);
  });

  it("follow references and the alternative that is no null, and end where those go in circles", () => {
    const root = { $defs: { A: { $ref: "#/$defs/B" }, B: { properties: { x: {} } }, C: { $ref: "#/$defs/C" } } };
    expect(resolved({ anyOf: [{ $ref: "#/$defs/A" }, { type: "null" }] }, root)).toEqual({ properties: { x: {} } });
    expect(resolved({ $ref: "#/$defs/C" }, root)).toEqual({ $ref: "#/$defs/C" });
    expect(resolved({ $ref: "#/$defs/constructor" }, root)).toEqual({});
  });
});

describe("kinds of values", () => {
  it("tells money by name or schema, times by their form", () => {
    expect([currencyOf("euros", {}), currencyOf("refund_amount", {}), currencyOf("cost", { "x-currency": "CHF" }), currencyOf("count", {}), currencyOf("constructor", {})]).toEqual(["EUR", "", "CHF", null, null]);
    const kinds = [kindOf("euros", 80, {}), kindOf("n", 80, {}), kindOf("at", "2026-01-02T03:04:05Z", {}), kindOf("at", "2026-99-02T03:04:05Z", {}), kindOf("a", [{}], {}), kindOf("a", [1, {}], {}), kindOf("a", null, {}), kindOf("a", false, {})];
    expect(kinds).toEqual(["money", "number", "time", "text", "table", "list", "none", "yes"]);
    expect([kindOf("deadline_ms", 86_400_000, {}), kindOf("deadline_ms", -1, {}), labelOf("deadline_ms", "Deadline Ms")]).toEqual(["duration", "number", "Deadline"]);
  });

  it("writes money and numbers as people do", () => {
    expect([moneyText(480, "EUR"), moneyText(0.0031, "USD"), moneyText(25, ""), moneyText(1, "nonsense")]).toEqual(["€480.00", "$0.0031", "25.00", "1"]);
    expect([numberText(2026), numberText(1234567.5)]).toEqual(["2026", "1,234,567.5"]);
  });
});

it("joins the columns of a list of objects, and says how many there are beside", () => {
  const { fields, more } = columnsOf([{ b: 1, a: 2 }, { c: 3 }], { "x-order": ["a"] , properties: { a: {} } }, {}, 2);
  expect([fields.map((one) => one.name), more]).toEqual([["a", "b"], 1]);
});

it("finds typed data where a payload carries it", () => {
  const typed = { schema: "a/1", content: { x: 1 } };
  for (const payload of [typed, { result: typed }, { request: typed }, { answer: { result: typed } }]) expect(typedOf(payload)).toEqual(typed);
  expect([typedOf({}), typedOf({ schema: "a/1", content: [] }), typedOf({ answer: null })]).toEqual([null, null, null]);
});
