import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { drawnEdges, mainWay, pathOf, placesOf, recipientsOf } from "../../src/lib/lifecycle";

type Edge = { from: string | string[]; event: string; to: string };
const file = JSON.parse(readFileSync(new URL("../../../../contracts/apc_contracts/data/apc-1.0.json", import.meta.url), "utf8"));
const declared = file.machines.packet_lifecycle as { states: string[]; terminal: string[]; edges: Edge[] };
const sources = (edge: Edge) => (edge.from === "*" ? declared.states : [edge.from].flat());
const machine = {
  states: declared.states.map((name) => ({ name, run_phase: null, is_terminal: declared.terminal.includes(name) })),
  edges: declared.edges.flatMap((edge) => sources(edge).map((from_state) => ({ event: edge.event, from_state, to_state: edge.to }))),
};
const hop = (recipient: string, from_state: string, to_state: string) => ({ seq: 1, recipient, attempt: 1, event: "e", from_state, to_state, at: "", actor: "", metadata: null });

describe("the diagram of a packet's lifecycle", () => {
  it("puts the way that nothing stops into one column", () => {
    expect(mainWay(machine)).toEqual(["DRAFT", "NORMALIZED", "SCHEMA_VALIDATED", "POLICY_VALIDATED", "ROUTED", "DELIVERED", "APPLIED", "VERIFIED", "PROMOTED", "ARCHIVED"]);
  });

  it("gives every state a separate place", () => {
    const places = placesOf(machine);
    expect(places.map((place) => place.name).sort()).toEqual([...declared.states].sort());
    expect(new Set(places.map((place) => `${place.column} ${place.row}`)).size).toBe(places.length);
    expect(Math.max(...places.map((place) => place.row))).toBe(9);
  });

  it("draws no line for what may happen everywhere", () => {
    const edges = drawnEdges(machine);
    expect(edges).toContainEqual({ from: "DELIVERED", to: "ROUTED" });
    expect(edges.filter((edge) => edge.to === "RETRACTED")).toEqual([]);
  });

  it("follows the whole packet and one recipient", () => {
    const hops = [hop("", "DRAFT", "ROUTED"), hop("a", "ROUTED", "DELIVERED"), hop("b", "ROUTED", "DEAD_LETTERED"), hop("b", "DEAD_LETTERED", "")];
    expect(recipientsOf(["b", "c", "a"], hops)).toEqual(["b", "a"]);
    expect(pathOf(hops, "b")).toEqual([{ from: "DRAFT", to: "ROUTED" }, { from: "ROUTED", to: "DEAD_LETTERED" }]);
    expect(pathOf(hops, undefined)).toHaveLength(1);
  });
});
