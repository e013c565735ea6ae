/** Content of a message as fields: their order, names and kinds by its JSON Schema. Pure; `apc_contracts.content` orders alike. */
import { plain } from "./format";

export type Json = Record<string, unknown>;

export interface Field {
  name: string;
  label: string;
  about: string;
  value: unknown;
  schema: Json;
  isTitle: boolean;
}

const object = (value: unknown): Json => (typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {});
const list = (value: unknown): unknown[] => (Array.isArray(value) ? value : []);
const texts = (value: unknown): string[] => list(value).filter((one): one is string => typeof one === "string");
const own = (holder: Json, name: string): unknown => (Object.hasOwn(holder, name) ? holder[name] : undefined);

export const isObject = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);

/** What a reference means, or the one alternative that is no null. */
export function resolved(schema: Json, root: Json): Json {
  let found = schema;
  for (let turn = 0; turn < 8; turn++) {
    const reference = own(found, "$ref");
    const some = list(own(found, "anyOf")).map(object).filter((one) => own(one, "type") !== "null");
    if (typeof reference === "string") {
      const name = reference.slice(reference.lastIndexOf("/") + 1);
      const named = own(object(own(root, "$defs")), name) ?? own(object(own(root, "definitions")), name);
      found = reference === "#" ? root : object(named);
    } else if (some.length === 1 && !Object.hasOwn(found, "properties")) {
      found = { ...some[0], ...("title" in found ? { title: found.title } : {}) };
    } else break;
  }
  return found;
}

/** The fields of a value: the one marked as title first, then in the order of the schema, then what it does not name. */
export function fieldsOf(value: Json, schema: Json, root: Json): Field[] {
  const known = object(own(resolved(schema, root), "properties"));
  const { "x-order": order, required } = resolved(schema, root);
  const named = [...new Set([...texts(order), ...texts(required), ...Object.keys(known)])].filter((name) => Object.hasOwn(value, name));
  const isTitle = (name: string) => own(object(own(known, name)), "x-title") === true;
  const names = [...new Set([...named.filter(isTitle), ...named, ...Object.keys(value)])];
  return names.map((name) => {
    const field = object(own(known, name));
    const inner = resolved(field, root);
    const title = typeof field.title === "string" && field.title !== "" ? field.title : "";
    return { name, label: labelOf(name, title), about: typeof inner.description === "string" ? inner.description : "", value: value[name], schema: field, isTitle: isTitle(name) };
  });
}

/** The text of the field that the schema marks as title; null without one. */
export function titleOf(value: Json, schema: Json): string | null {
  const named = fieldsOf(value, schema, schema).find((one) => one.isTitle)?.value;
  return typeof named === "string" && named.trim() !== "" ? named : null;
}

/** The title of the schema; of one that pydantic has made of the name, "Due At", and without one, the name in plain case: "Due at". */
export function labelOf(name: string, title: string): string {
  const isMade = title.toLowerCase().replaceAll(" ", "_") === name.toLowerCase();
  const bare = name.endsWith(MILLISECONDS) && name.length > MILLISECONDS.length ? name.slice(0, -MILLISECONDS.length) : name;
  if (title !== "" && !isMade) return title;
  return plain(bare.replaceAll(/([a-z])([A-Z])/g, "$1_$2")).replace(CODE_OF_CURRENCY, (code) => code.toUpperCase());
}

export type Kind = "money" | "time" | "duration" | "number" | "yes" | "none" | "text" | "list" | "table" | "object";

const MONEY: Record<string, string> = { euro: "EUR", euros: "EUR", eur: "EUR", dollar: "USD", dollars: "USD", usd: "USD", pounds: "GBP", gbp: "GBP", chf: "CHF" };
/** At the end of a name, as of price_eur. */
const CODE_OF_CURRENCY = /(?<= )(eur|usd|gbp|chf)$/i;
const SUMS = new Set(["amount", "price", "cost", "fee"]);
const TIME = /^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})$/;

/** How the name of a length of time ends, which is shown as one. */
const MILLISECONDS = "_ms";

const words = (name: string): string[] => name.replaceAll(/([a-z])([A-Z])/g, "$1_$2").toLowerCase().split(/[^a-z]+/);

/** The currency that a schema or a name tells; "" is money of an unknown one; null is no money. */
export function currencyOf(name: string, schema: Json): string | null {
  const given = schema["x-currency"];
  if (typeof given === "string" && /^[A-Z]{3}$/.test(given)) return given;
  const found = words(name);
  const currency = found.find((word) => Object.hasOwn(MONEY, word));
  if (currency) return MONEY[currency]!;
  return SUMS.has(found.at(-1) ?? "") ? "" : null;
}

export function kindOf(name: string, value: unknown, schema: Json): Kind {
  if (value === null || value === undefined) return "none";
  if (typeof value === "boolean") return "yes";
  if (typeof value === "number" && value >= 0 && name.endsWith(MILLISECONDS)) return "duration";
  if (typeof value === "number") return currencyOf(name, schema) === null ? "number" : "money";
  if (typeof value === "string") return TIME.test(value) && !Number.isNaN(Date.parse(value)) ? "time" : "text";
  if (Array.isArray(value)) return value.length > 0 && value.every(isObject) ? "table" : "list";
  return "object";
}

/** 480 as €480.00; of an unknown currency 480.00. */
export function moneyText(value: number, currency: string): string {
  if (!Number.isFinite(value)) return String(value);
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: Math.abs(value) < 1 && value !== 0 ? 4 : 2 };
  try {
    return new Intl.NumberFormat("en", currency ? { style: "currency", currency, ...digits } : digits).format(value);
  } catch {
    return String(value);
  }
}

/** A number with separated thousands where it has many digits; years and ids of four digits stay as they are. */
export function numberText(value: number): string {
  return Math.abs(value) < 10_000 ? String(value) : new Intl.NumberFormat("en", { maximumFractionDigits: 6 }).format(value);
}

/** The columns of a list of objects: their fields in the order of the schema, at most `most`. */
export function columnsOf(rows: readonly Json[], schema: Json, root: Json, most = 8): { fields: Field[]; more: number } {
  const all = new Map<string, Field>();
  for (const row of rows.slice(0, 50)) for (const field of fieldsOf(row, schema, root)) if (!all.has(field.name)) all.set(field.name, field);
  const ordered = [...all.values()];
  return { fields: ordered.slice(0, most), more: Math.max(0, ordered.length - most) };
}

/** The registered data that a payload carries: of a message, a result, a request, or an answer. */
export function typedOf(payload: Json): { schema: string; content: Json } | null {
  const carriers = [payload, own(payload, "result"), own(payload, "request"), own(object(own(payload, "answer")), "result")];
  for (const one of carriers.map(object)) {
    if (typeof one.schema === "string" && isObject(one.content)) return { schema: one.schema, content: one.content };
  }
  return null;
}
