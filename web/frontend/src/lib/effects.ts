/** Entries of workers and operators about effects outside the bus, as hops of a packet carry them. */

export type EffectEntry = {
  /** claimed, made, unknown, settled or released. */
  entry: string;
  /** The handler's name for the effect. */
  key: string;
  /** SHA-256 of the result in hex; "" without one. */
  digest: string;
  /** What the other side calls it, and why it is unknown, settled or released. */
  said: string[];
};

const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** The entry that a hop is; null for a hop of a delivery, and for those who may not read what it says. */
export function effectOf(hop: { metadata: Record<string, unknown> | null }): EffectEntry | null {
  const found = hop.metadata?.effect;
  if (typeof found !== "object" || found === null) return null;
  const said = found as Record<string, unknown>;
  return {
    entry: text(said.entry),
    key: text(said.key),
    digest: text(said.digest),
    said: [text(said.reference), text(said.note)].filter((one) => one !== ""),
  };
}
