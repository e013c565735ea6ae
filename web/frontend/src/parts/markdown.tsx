/** Markdown of an agent, drawn as elements of the page. */
import { memo, type ReactNode } from "react";
import { readMarkdown, type Block, type Inline } from "../lib/markdown";
import { visible } from "../lib/format";

function inline(content: readonly Inline[]): ReactNode {
  return content.map((one, at) => {
    if (one.kind === "text") return <span key={at}>{visible(one.text)}</span>;
    if (one.kind === "code") return <code key={at}>{visible(one.text)}</code>;
    if (one.kind === "strong") return <strong key={at}>{inline(one.content)}</strong>;
    if (one.kind === "em") return <em key={at}>{inline(one.content)}</em>;
    return (
      <a key={at} href={one.to} target="_blank" rel="noopener noreferrer nofollow" title={one.to}>
        {inline(one.content)}
      </a>
    );
  });
}

function block(one: Block, key: number): ReactNode {
  switch (one.kind) {
    case "paragraph":
      return <p key={key}>{inline(one.content)}</p>;
    case "heading":
      return (
        <p key={key} className="md-heading" data-level={one.level}>
          {inline(one.content)}
        </p>
      );
    case "code":
      return (
        <pre key={key} tabIndex={0} aria-label={one.language ? `Code, ${one.language}` : "Code"}>
          <code>{visible(one.text)}</code>
        </pre>
      );
    case "quote":
      return <blockquote key={key}>{one.content.map(block)}</blockquote>;
    case "list": {
      const items = one.items.map((item, at) => <li key={at}>{inline(item)}</li>);
      return one.isOrdered ? <ol key={key}>{items}</ol> : <ul key={key}>{items}</ul>;
    }
    case "table":
      return (
        <div key={key} className="md-table" tabIndex={0} role="region" aria-label="Table">
          <table>
            <thead>
              <tr>{one.head.map((cell, at) => <th key={at}>{inline(cell)}</th>)}</tr>
            </thead>
            <tbody>
              {one.rows.map((row, at) => (
                <tr key={at}>{row.map((cell, place) => <td key={place}>{inline(cell)}</td>)}</tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    case "rule":
      return <hr key={key} />;
  }
}

export const Markdown = memo(function Markdown({ text }: { text: string }) {
  return (
    <bdi className="md" dir="auto">
      {readMarkdown(text).map(block)}
    </bdi>
  );
});
