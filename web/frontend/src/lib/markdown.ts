/** Markdown as a tree of plain values. The page draws the tree: no text of an agent ever becomes HTML. */

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong"; content: Inline[] }
  | { kind: "em"; content: Inline[] }
  | { kind: "link"; content: Inline[]; to: string };

export type Block =
  | { kind: "paragraph"; content: Inline[] }
  | { kind: "heading"; level: number; content: Inline[] }
  | { kind: "code"; text: string; language: string }
  | { kind: "quote"; content: Block[] }
  | { kind: "list"; isOrdered: boolean; items: Inline[][] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

const INLINE = /(`+)([^]*?[^`])\1(?!`)|\*\*([^\s*](?:[^]*?[^\s*])?)\*\*|(?<![\w*])[*_]([^\s*_](?:[^*_]*?[^\s*_])?)[*_](?![\w*])|\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)/;
/** Nested marks beyond this depth stay text. */
const DEEPEST = 8;
const LONGEST = 200_000;
/** Marks are looked for in shorter texts alone: the search takes time with the square of the length. */
const LONGEST_MARKED = 20_000;

/** The address of a link that may be followed: http and https alone. */
export function safeAddress(address: string): string | null {
  try {
    const found = new URL(address);
    return found.protocol === "https:" || found.protocol === "http:" ? found.href : null;
  } catch {
    return null;
  }
}

export function readInline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let rest = text;
  while (rest !== "") {
    const match = depth < DEEPEST && rest.length <= LONGEST_MARKED ? INLINE.exec(rest) : null;
    if (!match) break;
    if (match.index > 0) found.push({ kind: "text", text: rest.slice(0, match.index) });
    const [whole, , code, strong, em, label, address] = match;
    if (code !== undefined) found.push({ kind: "code", text: code.trim() });
    else if (strong !== undefined) found.push({ kind: "strong", content: readInline(strong, depth + 1) });
    else if (em !== undefined) found.push({ kind: "em", content: readInline(em, depth + 1) });
    else {
      const to = safeAddress(address!);
      if (to) found.push({ kind: "link", content: readInline(label!, depth + 1), to });
      else found.push({ kind: "text", text: whole });
    }
    rest = rest.slice(match.index + whole.length);
  }
  if (rest !== "") found.push({ kind: "text", text: rest });
  return found;
}

const ITEM = /^\s{0,3}(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/;
const cells = (line: string): Inline[][] =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split("|")
    .map((cell) => readInline(cell.trim()));

/** Read a text; what is no Markdown is a paragraph. */
export function readMarkdown(text: string, depth = 0): Block[] {
  const lines = text.slice(0, LONGEST).replaceAll("\r\n", "\n").split("\n");
  const blocks: Block[] = [];
  let paragraph: string[] = [];
  const flush = () => {
    if (paragraph.length > 0) blocks.push({ kind: "paragraph", content: readInline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at]!;
    const fence = /^\s{0,3}(```+|~~~+)\s*([\w+-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (fence) {
      flush();
      const inner: string[] = [];
      while (++at < lines.length && !lines[at]!.trimStart().startsWith(fence[1]!)) inner.push(lines[at]!);
      blocks.push({ kind: "code", text: inner.join("\n"), language: fence[2]! });
    } else if (heading) {
      flush();
      blocks.push({ kind: "heading", level: heading[1]!.length, content: readInline(heading[2]!) });
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      blocks.push({ kind: "rule" });
    } else if (/^\s{0,3}>/.test(line) && depth < DEEPEST) {
      flush();
      const inner: string[] = [];
      for (; at < lines.length && /^\s{0,3}>/.test(lines[at]!); at++) inner.push(lines[at]!.replace(/^\s{0,3}> ?/, ""));
      at--;
      blocks.push({ kind: "quote", content: readMarkdown(inner.join("\n"), depth + 1) });
    } else if (ITEM.test(line)) {
      flush();
      const isOrdered = ITEM.exec(line)![1] !== undefined;
      const items: string[] = [];
      for (; at < lines.length; at++) {
        const item = ITEM.exec(lines[at]!);
        if (item && (item[1] !== undefined) === isOrdered) items.push(item[2]!);
        else if (/^\s{2,}\S/.test(lines[at]!) && items.length > 0) items.push(`${items.pop()!}\n${lines[at]!.trim()}`);
        else break;
      }
      at--;
      blocks.push({ kind: "list", isOrdered, items: items.map((item) => readInline(item)) });
    } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] ?? "") && (lines[at + 1] ?? "").includes("|")) {
      flush();
      const head = cells(line);
      const rows: Inline[][][] = [];
      for (at += 2; at < lines.length && lines[at]!.includes("|"); at++) rows.push(cells(lines[at]!));
      at--;
      blocks.push({ kind: "table", head, rows });
    } else if (line.trim() === "") flush();
    else paragraph.push(line);
  }
  flush();
  return blocks;
}
