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

/** Nested marks beyond this depth stay text. */
const DEEPEST = 8;
const LONGEST = 200_000;
const LONGEST_LABEL = 500;
const LONGEST_ADDRESS = 2000;

// Every search below only goes forward: reading takes time in proportion to the length, whatever the text.

/** Find the next place at or after one where `isThere`; asked with growing places, it looks at each of them once. */
class Ahead {
  #found = -1;
  readonly #length: number;
  readonly #isThere: (at: number) => boolean;

  constructor(length: number, isThere: (at: number) => boolean) {
    this.#length = length;
    this.#isThere = isThere;
  }

  from(at: number): number {
    if (this.#found < at) {
      this.#found = at;
      while (this.#found < this.#length && !this.#isThere(this.#found)) this.#found++;
    }
    return this.#found;
  }
}

/** Where the runs of backticks of each length begin, in order. */
function backticks(text: string): Map<number, number[]> {
  const runs = new Map<number, number[]>();
  for (let at = text.indexOf("`"); at >= 0; at = text.indexOf("`", at)) {
    const begin = at;
    while (text[at] === "`") at++;
    const known = runs.get(at - begin);
    if (known) known.push(begin);
    else runs.set(at - begin, [begin]);
  }
  for (const begins of runs.values()) begins.reverse();
  return runs;
}

const isSpace = (char: string | undefined): boolean => char === undefined || /\s/.test(char);
const isWord = (char: string | undefined): boolean => char !== undefined && /\w/.test(char);

interface Mark {
  found: Inline[];
  end: number;
}

/** The marks of one text: each method reads the mark that begins at a place; null where there is none. */
class Marks {
  readonly #text: string;
  readonly #depth: number;
  readonly #runs: Map<number, number[]>;
  readonly #strongEnds: Ahead;
  readonly #emEnds: Ahead;
  readonly #brackets: Ahead;
  readonly #addresses = new Map<number, string | null>();

  constructor(text: string, depth: number) {
    this.#text = text;
    this.#depth = depth;
    const isStar = (at: number) => text[at] === "*" || text[at] === "_";
    this.#runs = backticks(text);
    this.#strongEnds = new Ahead(text.length, (at) => text[at] === "*" && text[at + 1] === "*" && !isSpace(text[at - 1]) && text[at - 1] !== "*");
    this.#emEnds = new Ahead(text.length, isStar);
    this.#brackets = new Ahead(text.length, (at) => text[at] === "]" || text[at] === "\n");
  }

  at(at: number): Mark | null {
    const char = this.#text[at];
    if (char === "`") return this.#code(at);
    if (char === "[") return this.#link(at);
    return char === "*" || char === "_" ? (this.#strong(at) ?? this.#em(at)) : null;
  }

  /** How many characters stay text where a mark does not begin: of a run of backticks, all. */
  passed(at: number): number {
    let end = at + 1;
    if (this.#text[at] === "`") while (this.#text[end] === "`") end++;
    return end - at;
  }

  #code(at: number): Mark | null {
    const size = this.passed(at);
    const ends = this.#runs.get(size)!;
    while (ends.length > 0 && ends.at(-1)! <= at) ends.pop();
    const end = ends.at(-1);
    return end === undefined ? null : { found: [{ kind: "code", text: this.#text.slice(at + size, end).trim() }], end: end + size };
  }

  #strong(at: number): Mark | null {
    const first = this.#text[at + 2];
    if (this.#text[at] !== "*" || this.#text[at + 1] !== "*" || isSpace(first) || first === "*") return null;
    const end = this.#strongEnds.from(at + 3);
    return end >= this.#text.length ? null : { found: [{ kind: "strong", content: this.#inner(at + 2, end) }], end: end + 2 };
  }

  #em(at: number): Mark | null {
    const before = this.#text[at - 1];
    const end = this.#emEnds.from(at + 1);
    const after = this.#text[end + 1];
    if (isWord(before) || before === "*" || isSpace(this.#text[at + 1])) return null;
    if (end >= this.#text.length || end === at + 1 || isSpace(this.#text[end - 1]) || isWord(after) || after === "*") return null;
    return { found: [{ kind: "em", content: this.#inner(at + 1, end) }], end: end + 1 };
  }

  #link(at: number): Mark | null {
    const close = this.#brackets.from(at + 1);
    if (this.#text[close] !== "]" || close === at + 1 || close - at - 1 > LONGEST_LABEL) return null;
    const address = this.#address(close + 1);
    if (address === null) return null;
    const to = safeAddress(address);
    const end = close + address.length + 3;
    return { found: [to ? { kind: "link", content: this.#inner(at + 1, close), to } : { kind: "text", text: this.#text.slice(at, end) }], end };
  }

  /** What stands in the brackets that open here; read once, however many labels end before it. */
  #address(open: number): string | null {
    let known = this.#addresses.get(open);
    if (known === undefined) {
      let end = open + 1;
      const last = open + LONGEST_ADDRESS + 1;
      if (this.#text[open] === "(") while (end < last && !isSpace(this.#text[end]) && this.#text[end] !== "(" && this.#text[end] !== ")") end++;
      known = this.#text[end] === ")" && end > open + 1 ? this.#text.slice(open + 1, end) : null;
      this.#addresses.set(open, known);
    }
    return known;
  }

  #inner(from: number, to: number): Inline[] {
    return readInline(this.#text.slice(from, to), this.#depth + 1);
  }
}

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
  if (depth >= DEEPEST) return text === "" ? [] : [{ kind: "text", text }];
  const found: Inline[] = [];
  const marks = new Marks(text, depth);
  let begin = 0;
  for (let at = 0; at < text.length; ) {
    const mark = marks.at(at);
    if (!mark) {
      at += marks.passed(at);
      continue;
    }
    if (at > begin) found.push({ kind: "text", text: text.slice(begin, at) });
    found.push(...mark.found);
    begin = at = mark.end;
  }
  if (begin < text.length) found.push({ kind: "text", text: text.slice(begin) });
  return found;
}

/** A line without up to three spaces before it; null when it is indented further. */
function outdented(line: string): string | null {
  const text = line.trimStart();
  return line.length - text.length <= 3 ? text : null;
}

function headingOf(line: string): { level: number; text: string } | null {
  const level = /^#{1,6}(?=\s)/.exec(line)?.[0].length;
  if (level === undefined) return null;
  const text = line.slice(level).trim();
  let end = text.length;
  while (text[end - 1] === "#") end--;
  return { level, text: text.slice(0, end).trim() };
}

function isRule(line: string): boolean {
  const text = outdented(line);
  const mark = text?.[0];
  if (!text || (mark !== "-" && mark !== "*" && mark !== "_")) return false;
  let count = 0;
  for (const char of text) {
    if (char === mark) count++;
    else if (!isSpace(char)) return false;
  }
  return count >= 3;
}

function itemOf(line: string): { isOrdered: boolean; text: string } | null {
  const text = outdented(line) ?? "";
  const mark = /^(?:[-*+]|\d{1,9}[.)])(?=\s)/.exec(text)?.[0];
  return mark === undefined ? null : { isOrdered: mark.length > 1, text: text.slice(mark.length).trimStart() };
}

/** Whether it is the line below a table's head: dashes, with or without colons, between bars. */
function isBelowHead(line: string): boolean {
  if (!line.includes("|")) return false;
  return unbarred(line)
    .split("|")
    .every((cell) => /^:?-+:?$/.test(cell.trim()));
}

function unbarred(line: string): string {
  const text = line.trim();
  return text.slice(text.startsWith("|") ? 1 : 0, text.length > 1 && text.endsWith("|") ? -1 : undefined);
}

const cells = (line: string): Inline[][] =>
  unbarred(line)
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
    const heading = headingOf(line);
    if (fence) {
      flush();
      const inner: string[] = [];
      while (++at < lines.length && !lines[at]!.trimStart().startsWith(fence[1]!)) inner.push(lines[at]!);
      blocks.push({ kind: "code", text: inner.join("\n"), language: fence[2]! });
    } else if (heading) {
      flush();
      blocks.push({ kind: "heading", level: heading.level, content: readInline(heading.text) });
    } else if (isRule(line)) {
      flush();
      blocks.push({ kind: "rule" });
    } else if (/^\s{0,3}>/.test(line) && depth < DEEPEST) {
      flush();
      const inner: string[] = [];
      for (; at < lines.length && /^\s{0,3}>/.test(lines[at]!); at++) inner.push(lines[at]!.replace(/^\s{0,3}> ?/, ""));
      at--;
      blocks.push({ kind: "quote", content: readMarkdown(inner.join("\n"), depth + 1) });
    } else if (itemOf(line)) {
      flush();
      const isOrdered = itemOf(line)!.isOrdered;
      const items: string[] = [];
      for (; at < lines.length; at++) {
        const item = itemOf(lines[at]!);
        if (item?.isOrdered === isOrdered) items.push(item.text);
        else if (/^\s{2,}\S/.test(lines[at]!) && items.length > 0) items.push(`${items.pop()!}\n${lines[at]!.trim()}`);
        else break;
      }
      at--;
      blocks.push({ kind: "list", isOrdered, items: items.map((item) => readInline(item)) });
    } else if (line.includes("|") && isBelowHead(lines[at + 1] ?? "")) {
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
