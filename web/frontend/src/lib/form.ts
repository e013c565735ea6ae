/** The form of an answer, by the JSON Schema that its question brings along: fields, and what is written into them. Pure; the gate checks by the same schema. */
import { fieldsOf, isObject, resolved, type Json } from "./content";

export type Input = "text" | "number" | "integer" | "decimal" | "yes" | "choice" | "date" | "time" | "list" | "json";

export interface FormField {
  name: string;
  label: string;
  about: string;
  input: Input;
  choices: unknown[];
  isNeeded: boolean;
  hint: string;
  /** What stands in the field at first. */
  initial: string;
  schema: Json;
}

export interface Written {
  answer: Json;
  /** Name of a field, and why it cannot be sent as it is. */
  faults: Map<string, string>;
}

const HINTS: Partial<Record<Input, string>> = { list: "one a line", json: "JSON", decimal: "such as 12.50", integer: "a whole number" };
const DECIMAL = /^[+-]?(\d+(\.\d*)?|\.\d+)$/;

function inputOf(schema: Json, root: Json): Input {
  if (Array.isArray(schema.enum) && schema.enum.length > 0) return "choice";
  if (schema.type === "array" && isObject(schema.items)) {
    const items = resolved(schema.items, root);
    return items.type === "string" && !items.enum ? "list" : "json";
  }
  if (schema.type === "string") return schema.format === "decimal" ? "decimal" : schema.format === "date" ? "date" : schema.format === "date-time" ? "time" : "text";
  if (schema.type === "boolean") return "yes";
  if (schema.type === "integer" || schema.type === "number") return schema.type;
  return "json";
}

/** A value as the field shows it. */
function textOf(value: unknown, input: Input, choices: unknown[]): string {
  if (value === undefined || value === null) return "";
  if (input === "choice") return choices.includes(value) ? String(choices.indexOf(value)) : "";
  if (input === "yes") return value === true ? "yes" : value === false ? "no" : "";
  if (input === "list") return Array.isArray(value) ? value.join("\n") : "";
  return input === "json" ? JSON.stringify(value) : input === "time" ? "" : String(value);
}

/** The fields that a question asks for, in their order. */
export function formFields(schema: Json): FormField[] {
  const known = isObject(schema.properties) ? schema.properties : {};
  const needed = Array.isArray(schema.required) ? schema.required : [];
  return fieldsOf(known, schema, schema).map(({ name, label, about, schema: own }) => {
    const inner = resolved(own, schema);
    const input = inputOf(inner, schema);
    const choices = input === "choice" ? (inner.enum as unknown[]) : [];
    const said = typeof own.description === "string" ? own.description : about;
    return { name, label, about: said, input, choices, isNeeded: needed.includes(name), hint: HINTS[input] ?? "", initial: textOf(own.default, input, choices), schema: inner };
  });
}

class Fault extends Error {}

function numberIn(text: string, isWhole: boolean): number {
  const value = Number(text);
  if (text.trim() === "" || !Number.isFinite(value)) throw new Fault("Write a number.");
  if (isWhole && !Number.isInteger(value)) throw new Fault("Write a whole number.");
  return value;
}

function checkBounds(value: number, { minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Json): void {
  if (typeof minimum === "number" && value < minimum) throw new Fault(`At least ${minimum}.`);
  if (typeof exclusiveMinimum === "number" && value <= exclusiveMinimum) throw new Fault(`More than ${exclusiveMinimum}.`);
  if (typeof maximum === "number" && value > maximum) throw new Fault(`At most ${maximum}.`);
  if (typeof exclusiveMaximum === "number" && value >= exclusiveMaximum) throw new Fault(`Less than ${exclusiveMaximum}.`);
}

function checkText(text: string, { minLength, maxLength }: Json): string {
  const length = [...text].length;
  if (typeof minLength === "number" && length < minLength) throw new Fault(`At least ${minLength} characters.`);
  if (typeof maxLength === "number" && length > maxLength) throw new Fault(`At most ${maxLength} characters.`);
  return text;
}

function valueOf(field: FormField, text: string): unknown {
  switch (field.input) {
    case "choice":
      return field.choices[Number(text)];
    case "yes":
      return text === "yes";
    case "integer":
    case "number": {
      const value = numberIn(text, field.input === "integer");
      checkBounds(value, field.schema);
      return value;
    }
    case "decimal":
      if (!DECIMAL.test(text.trim())) throw new Fault("Write a number such as 12.50.");
      checkBounds(Number(text), field.schema);
      return text.trim();
    case "list":
      return text.split("\n").map((one) => one.trim()).filter((one) => one !== "");
    case "time": {
      const at = new Date(text);
      if (Number.isNaN(at.getTime())) throw new Fault("Write a day and a time.");
      return at.toISOString();
    }
    case "json":
      try {
        return JSON.parse(text) as unknown;
      } catch {
        throw new Fault("This is no JSON.");
      }
    default:
      return checkText(text, field.schema);
  }
}

/** What was written as an answer, and what is wrong with it; an empty field that is not needed is left out. */
export function written(fields: readonly FormField[], texts: ReadonlyMap<string, string>): Written {
  const faults = new Map<string, string>();
  const entries: [string, unknown][] = [];
  for (const field of fields) {
    const text = texts.get(field.name) ?? field.initial;
    if (text.trim() === "") {
      if (field.isNeeded && field.input === "list") entries.push([field.name, []]);
      else if (field.isNeeded) faults.set(field.name, "This field is needed.");
      continue;
    }
    try {
      entries.push([field.name, valueOf(field, text)]);
    } catch (fault) {
      if (!(fault instanceof Fault)) throw fault;
      faults.set(field.name, fault.message);
    }
  }
  return { answer: Object.fromEntries(entries), faults };
}

/** The field of the form that a refusal is about, as `answer.notes[1]` names it; null = of none. */
export function refusedField(fields: readonly FormField[], place: string | null | undefined): string | null {
  if (!place?.startsWith("answer.")) return null;
  const rest = place.slice("answer.".length);
  const found = fields.filter(({ name }) => rest === name || rest.startsWith(`${name}.`) || rest.startsWith(`${name}[`));
  return found.sort((one, other) => other.name.length - one.name.length)[0]?.name ?? null;
}
