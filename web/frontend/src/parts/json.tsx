/** JSON that folds. Foreign text is only ever text. */
import { useState } from "react";
import { visible } from "../lib/format";
import { useFold } from "./folds";

const LONGEST = 2000;
const MOST = 500;

function Text({ value }: { value: string }) {
  const { shown, left } = useFold(value.length, LONGEST);
  return (
    <bdi className="j-text">
      &quot;{visible(value.slice(0, shown))}&quot;{left > 0 && <i> … {value.length.toLocaleString("en")} characters</i>}
    </bdi>
  );
}

function Scalar({ value }: { value: unknown }) {
  if (typeof value === "string") {
    return <Text value={value} />;
  }
  return <span className={typeof value === "number" ? "j-num" : "j-word"}>{String(value)}</span>;
}

function Node({ name, value, depth }: { name?: string; value: unknown; depth: number }) {
  const isList = Array.isArray(value);
  const isTree = typeof value === "object" && value !== null;
  const entries = isTree ? Object.entries(value) : [];
  const [chosen, change] = useState<boolean>();
  const isShort = depth < 3 && entries.length <= 40;
  // Who approves opens everything at once (`CountedFolds`): what is folded or cut off counts as closed.
  const fold = useFold(entries.length, isShort ? MOST : 0);
  const isOpen = chosen ?? fold.shown > 0;
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
          {entries.slice(0, Math.max(fold.shown, Math.min(MOST, entries.length))).map(([key, one]) => (
            <Node key={key} name={key} value={one} depth={depth + 1} />
          ))}
          {fold.left > 0 && entries.length > MOST && <li className="quiet">… {entries.length - MOST} more</li>}
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
