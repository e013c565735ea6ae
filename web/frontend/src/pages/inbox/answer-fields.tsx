/** The fields that a question asks for: one input each by its schema, its refusal beside it. */
import { useId } from "react";
import { Foreign } from "../../parts/bits";
import type { FormField } from "../../lib/form";
import { sentence, visible } from "../../lib/format";

interface FieldProps {
  field: FormField;
  text: string;
  fault: string | undefined;
  write: (text: string) => void;
}

const NATIVE = { date: "date", time: "datetime-local" } as const;

function Entry({ field, text, id, told, isBad, write }: FieldProps & { id: string; told: string; isBad: boolean }) {
  const shared = { id, className: "field", value: text, "aria-describedby": told, "aria-invalid": isBad, "aria-required": field.isNeeded } as const;
  switch (field.input) {
    case "choice":
    case "yes":
      return (
        <select {...shared} onChange={(event) => write(event.target.value)}>
          <option value="">{field.isNeeded ? "Choose…" : "Left out"}</option>
          {field.input === "yes" ? (
            <>
              <option value="yes">Yes</option>
              <option value="no">No</option>
            </>
          ) : (
            field.choices.map((one, at) => <option key={at} value={String(at)}>{visible(String(one)).slice(0, 200)}</option>)
          )}
        </select>
      );
    case "list":
    case "json":
      return <textarea {...shared} rows={3} onChange={(event) => write(event.target.value)} />;
    case "date":
    case "time":
      return <input {...shared} type={NATIVE[field.input]} onChange={(event) => write(event.target.value)} />;
    default:
      return <input {...shared} type="text" inputMode={field.input === "text" ? "text" : "decimal"} autoComplete="off" onChange={(event) => write(event.target.value)} />;
  }
}

function Row(props: FieldProps) {
  const { field, fault } = props;
  const id = useId();
  const told = `${id}-told`;
  return (
    <div className="asked-field">
      <label htmlFor={id}>
        <Foreign>{field.label.slice(0, 200)}</Foreign> {!field.isNeeded && <span className="quiet">(may be left out)</span>}
      </label>
      <Entry {...props} id={id} told={told} isBad={fault !== undefined} />
      <p id={told} className={fault === undefined ? "quiet" : "refused"}>
        {fault === undefined ? <>{field.about && <><Foreign>{sentence(field.about.slice(0, 1_000))}</Foreign> </>}{field.hint && sentence(field.hint)}</> : <Foreign>{fault}</Foreign>}
      </p>
    </div>
  );
}

export function AnswerFields({ fields, texts, faults, write }: { fields: readonly FormField[]; texts: ReadonlyMap<string, string>; faults: ReadonlyMap<string, string>; write: (name: string, text: string) => void }) {
  return (
    <fieldset className="asked-fields">
      <legend className="quiet">Your answer</legend>
      {fields.map((field) => (
        <Row key={field.name} field={field} text={texts.get(field.name) ?? field.initial} fault={faults.get(field.name)} write={(text) => write(field.name, text)} />
      ))}
    </fieldset>
  );
}
