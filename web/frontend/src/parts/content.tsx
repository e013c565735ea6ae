/** Content as fields, by its JSON Schema: titles and order, money, times, lists as small tables, long parts folded. */
import { useQuery } from "@tanstack/react-query";
import { schemaDocument } from "../api/queries";
import { count, duration, plural, shortHashes } from "../lib/format";
import { columnsOf, currencyOf, fieldsOf, isObject, kindOf, moneyText, numberText, resolved, type Field, type Json as Content } from "../lib/content";
import { Foreign, Time, useIsViewer } from "./bits";
import { useFold } from "./folds";
import { Json } from "./json";

const FIRST_FIELDS = 40;
const FIRST_ROWS = 10;
const MORE = 100;
const FIRST_TEXT = 600;
const MORE_TEXT = 20_000;
const DEEPEST = 5;

function More({ left, what, more }: { left: number; what: string; more: () => void }) {
  if (left <= 0) return null;
  return (
    <button type="button" className="button small" onClick={more}>
      Show {left > MORE && what !== "character" ? "more" : "all"} <span className="quiet">({plural(left, what)} left)</span>
    </button>
  );
}

/** A text with its line breaks; a long one opens. */
export function LongText({ text }: { text: string }) {
  const { shown, left, more } = useFold(text.length, text.length > FIRST_TEXT * 1.2 ? FIRST_TEXT : text.length, MORE_TEXT);
  return (
    <>
      <span className="said">
        <Foreign>{left > 0 ? `${text.slice(0, shown)}…` : text}</Foreign>
      </span>{" "}
      <More left={left} what="character" more={more} />
    </>
  );
}

function List({ values, name, schema, root, depth }: { values: unknown[]; name: string; schema: Content; root: Content; depth: number }) {
  const { shown, left, more } = useFold(values.length, FIRST_ROWS, MORE);
  if (values.length === 0) return <span className="quiet">none</span>;
  return (
    <>
      <ul className="said-list">
        {values.slice(0, shown).map((one, at) => (
          <li key={at}>
            <Value name={name} value={one} schema={schema} root={root} depth={depth + 1} />
          </li>
        ))}
      </ul>
      <More left={left} what="entry" more={more} />
    </>
  );
}

function Rows({ rows, schema, root, depth }: { rows: Content[]; schema: Content; root: Content; depth: number }) {
  const { shown, left, more } = useFold(rows.length, FIRST_ROWS, MORE);
  const { fields, more: further } = columnsOf(rows, schema, root);
  if (further > 0 || fields.length < 2) return <List values={rows} name="" schema={schema} root={root} depth={depth} />;
  return (
    <>
      <div className="rows" tabIndex={0} role="region" aria-label="List">
        <table>
          <thead>
            <tr>
              {fields.map((one) => (
                <th key={one.name} scope="col">
                  <Foreign>{one.label}</Foreign>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.slice(0, shown).map((row, at) => (
              <tr key={at}>
                {fields.map((one) => (
                  <td key={one.name}>{Object.hasOwn(row, one.name) && <Value name={one.name} value={row[one.name]} schema={one.schema} root={root} depth={depth + 1} />}</td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <More left={left} what="row" more={more} />
    </>
  );
}

function Value({ name, value, schema, root, depth }: { name: string; value: unknown; schema: Content; root: Content; depth: number }) {
  const inner = resolved(schema, root);
  switch (kindOf(name, value, inner)) {
    case "none":
      return <span className="quiet">none</span>;
    case "yes":
      return <>{value ? "Yes" : "No"}</>;
    case "duration":
      return <span className="num" title={`${count(value as number)} ms`}>{duration(value as number)}</span>;
    case "number":
      return <span className="num">{numberText(value as number)}</span>;
    case "money":
      return <span className="num">{moneyText(value as number, currencyOf(name, inner) ?? "")}</span>;
    case "time":
      return <Time at={value as string} />;
    case "text":
      return value === "" ? <span className="quiet">empty</span> : <LongText text={value as string} />;
  }
  if (depth >= DEEPEST) return <Json value={value} />;
  const items = isObject(inner.items) ? inner.items : {};
  if (!Array.isArray(value)) return <Fields value={value as Content} schema={inner} root={root} depth={depth + 1} />;
  if (kindOf(name, value, inner) === "table") return <Rows rows={value as Content[]} schema={items} root={root} depth={depth} />;
  return <List values={value} name={name} schema={items} root={root} depth={depth} />;
}

function Row({ field, root, depth }: { field: Field; root: Content; depth: number }) {
  return (
    <>
      <dt title={field.about || undefined}>
        <Foreign>{field.label.slice(0, 200)}</Foreign>
      </dt>
      <dd className={field.isTitle ? "named" : undefined}>
        <Value name={field.name} value={field.value} schema={field.schema} root={root} depth={depth} />
      </dd>
    </>
  );
}

/** The fields of a value. Without a schema they stand as they come. */
export function Fields({ value, schema = {}, root = schema, depth = 0 }: { value: Content; schema?: Content; root?: Content; depth?: number }) {
  const fields = fieldsOf(value, schema, root);
  const { shown, left, more } = useFold(fields.length, FIRST_FIELDS, MORE);
  if (fields.length === 0) return <span className="quiet">no fields</span>;
  return (
    <>
      <dl className={`fields ${depth > 0 ? "inner" : ""}`}>
        {fields.slice(0, shown).map((one) => (
          <Row key={one.name} field={one} root={root} depth={depth} />
        ))}
      </dl>
      <More left={left} what="field" more={more} />
    </>
  );
}

/** Content of a registered schema, such as `refund/1`. */
export function TypedContent({ schema, content }: { schema: string; content: Content }) {
  const isViewer = useIsViewer();
  const answer = useQuery({ ...schemaDocument(schema), enabled: !isViewer });
  // Without the schema the fields would stand in another order for a moment.
  if (answer.isLoading) return <span className="bone" role="status" aria-label="Loading the fields" style={{ display: "block", width: "40%" }} />;
  return <Fields value={content} schema={answer.data?.document ?? {}} />;
}

export type BodyState = "readable" | "sealed" | "erased" | "damaged";

const NO_CONTENT: Record<BodyState, string> = {
  readable: "",
  sealed: "Encrypted: this server holds no key.",
  erased: "Erased: its key was destroyed, nobody can read it any more.",
  damaged: "Not readable as a packet: the exact bytes are in the log.",
};

/** Why there is no content to read, in words; "" where there is. */
export function whyNoContent(body: BodyState, isViewer: boolean): string {
  return isViewer ? "Your role may not read contents." : NO_CONTENT[body];
}

/** One line of a content, as the server made it, or why there is none. */
export function ContentLine({ line, body }: { line: string; body: BodyState }) {
  const isViewer = useIsViewer();
  const why = whyNoContent(body, isViewer);
  if (why) return <span className="quiet">{why}</span>;
  return line ? <Foreign>{shortHashes(line)}</Foreign> : <span className="quiet">no content</span>;
}
