/** Where the states of a packet's lifecycle stand on the diagram, and which of them a packet passed. */
import type { Schemas } from "../api/client";

type Machine = Schemas["SessionMachine"];
type Hop = Schemas["PacketHop"];

export interface Place {
  name: string;
  /** 0 is the way of a packet that nothing stops; the ends beside it stand in column 1. */
  column: number;
  row: number;
}

/** The way that nothing stops: from the first state along the edge that the contract names first. */
export function mainWay(machine: Machine): string[] {
  const ends = new Set(machine.states.filter((state) => state.is_terminal).map((state) => state.name));
  const way: string[] = [];
  let at = machine.states[0]?.name;
  while (at !== undefined && !way.includes(at)) {
    way.push(at);
    if (ends.has(at)) break;
    at = machine.edges.find((edge) => edge.from_state === at)?.to_state;
  }
  return way;
}

/** The main way from top to bottom; every other state beside the middle of those that lead to it. */
export function placesOf(machine: Machine): Place[] {
  const way = mainWay(machine);
  const places = way.map((name, row) => ({ name, column: 0, row }));
  const beside = machine.states
    .filter((state) => !way.includes(state.name))
    .map((state) => {
      const rows = machine.edges.filter((edge) => edge.to_state === state.name).map((edge) => way.indexOf(edge.from_state)).filter((row) => row >= 0);
      return { name: state.name, wish: rows.length ? rows.reduce((sum, row) => sum + row, 0) / rows.length : way.length };
    })
    .sort((a, b) => a.wish - b.wish);
  let next = 0;
  beside.forEach((one, index) => {
    const last = Math.max(next, way.length - (beside.length - index));
    const row = Math.min(Math.max(next, Math.ceil(one.wish)), last);
    places.push({ name: one.name, column: 1, row });
    next = row + 1;
  });
  return places;
}

/** Edges worth a line: those that lead away from nearly every state say nothing. */
export function drawnEdges(machine: Machine): { from: string; to: string }[] {
  const sources = new Map<string, number>();
  for (const edge of machine.edges) sources.set(edge.event, (sources.get(edge.event) ?? 0) + 1);
  const kept = machine.edges.filter((edge) => sources.get(edge.event)! * 2 < machine.states.length);
  return [...new Map(kept.map((edge) => [`${edge.from_state} ${edge.to_state}`, { from: edge.from_state, to: edge.to_state }])).values()];
}

/** Recipients that have steps of their own, in the order of the packet. */
export function recipientsOf(recipients: readonly string[], hops: readonly Hop[]): string[] {
  const moved = new Set(hops.map((hop) => hop.recipient));
  return recipients.filter((name) => moved.has(name));
}

/** The steps of the whole packet and of one recipient that changed a state, oldest first. */
export function pathOf(hops: readonly Hop[], recipient: string | undefined): { from: string; to: string }[] {
  return hops.filter((hop) => (hop.recipient === "" || hop.recipient === recipient) && hop.to_state && hop.to_state !== hop.from_state).map((hop) => ({ from: hop.from_state, to: hop.to_state }));
}
