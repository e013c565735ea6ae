/** JSON that folds. Foreign text is only ever text. */
import { useState } from "react";
import { visible } from "../lib/format";

const LONGEST = 2000;

function Scalar({ value }: { value: unknown }) {
  if (typeof value === "string") {
    const isLong = value.length > LONGEST;
    return (
      <bdi className="j-text">
        &quot;{visible(isLong ? value.slice(0, LONGEST) : value)}&quot;{isLong && <i> … {value.length.toLocaleString("en")} characters</i>}
      </bdi>
    );
  }
  return <span className={typeof value === "number" ? "j-num" : "j-word"}>{String(value)}</span>;
}

function Node({ name, value, depth }: { name?: string; value: unknown; depth: number }) {
  const isList = Array.isArray(value);
  const isTree = typeof value === "object" && value !== null;
  const entries = isTree ? Object.entries(value) : [];
  const [isOpen, change] = useState(depth < 3 && entries.length <= 40);
  const label = name !== undefined && <span className="j-name">{visible(name)}: </span>;
  if (!isTree) {
    return (
      <li>
        {label}
        <Scalar value={value} />
      </li>
    );
  }
  if (entries.length === 0) {
    return (
      <li>
        {label}
        {isList ? "[]" : "{}"}
      </li>
    );
  }
  return (
    <li>
      <button className="j-fold" aria-expanded={isOpen} onClick={() => change(!isOpen)}>
        <span aria-hidden="true">{isOpen ? "▾" : "▸"}</span>
        {label || <span className="sr">document</span>}
        <span className="quiet">{isList ? `[${entries.length}]` : `{${entries.length}}`}</span>
      </button>
      {isOpen && (
        <ul>
          {entries.slice(0, 500).map(([key, one]) => (
            <Node key={key} name={key} value={one} depth={depth + 1} />
          ))}
          {entries.length > 500 && <li className="quiet">… {entries.length - 500} more</li>}
        </ul>
      )}
    </li>
  );
}

export function Json({ value }: { value: unknown }) {
  return (
    <ul className="json">
      <Node value={value} depth={0} />
    </ul>
  );
}
