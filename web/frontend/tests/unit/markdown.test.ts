import { describe, expect, it } from "vitest";
import { toCsv } from "../../src/lib/export";
import { plain, sentence, shortHashes, shortId, visible } from "../../src/lib/format";
import { fieldsOf, kindOf, labelOf } from "../../src/lib/content";
import { readInline, readMarkdown, safeAddress, type Block, type Inline } from "../../src/lib/markdown";

const text = (content: Inline[]): string =>
  content.map((one) => ("text" in one ? one.text : text(one.content))).join("");

describe("Markdown inside a line", () => {
  const kinds: [string, string[]][] = [
    ["a *b* c", ["text", "em", "text"]],
    ["_a_", ["em"]],
    ["snake_case_name", ["text"]],
    ["2 * 3 * 4", ["text"]],
    ["**a** and `b`", ["strong", "text", "code"]],
    ["***a***", ["text", "strong", "text"]],
    ["**a*b**", ["strong"]],
    ["** a **", ["text"]],
    ["``a ` b``", ["code"]],
    ["```a``", ["text"]],
    ["`a", ["text"]],
    ["[a](https://a.example) [b](javascript:x)", ["link", "text", "text"]],
    ["[a](https://a.example/(b))", ["text"]],
    ["[a]\n(https://a.example)", ["text"]],
    ["[[a](https://a.example)", ["link"]],
    [`[${"a".repeat(500)}](https://a.example)`, ["link"]],
    [`[${"a".repeat(501)}](https://a.example)`, ["text"]],
    [`[a](https://a.example/${"b".repeat(1982)})`, ["link"]],
    [`[a](https://a.example/${"b".repeat(1983)})`, ["text"]],
  ];

  it.each(kinds)("reads text %#", (line, expected) => {
    expect(readInline(line).map((one) => one.kind)).toEqual(expected);
  });

  it("loses no character of a text without marks", () => {
    for (const line of ["*", "**", "_*_", "a ` b", "[a](b c)", "]]((", "x".repeat(50)]) expect(text(readInline(line)), line).toBe(line);
  });
});

describe("Markdown of lines", () => {
  const blocks: [string, Partial<Block>[]][] = [
    ["## A ##", [{ kind: "heading", level: 2 }]],
    ["# A #b", [{ kind: "heading", level: 1 }]],
    ["#A", [{ kind: "paragraph" }]],
    ["- - -", [{ kind: "rule" }]],
    ["--", [{ kind: "paragraph" }]],
    ["-- x", [{ kind: "paragraph" }]],
    ["    - a", [{ kind: "paragraph" }]],
    ["1) a\n2) b", [{ kind: "list", isOrdered: true }]],
    ["- a\n1. b", [{ kind: "list", isOrdered: false }, { kind: "list", isOrdered: true }]],
    ["a|b\n:-|-:\n1|2", [{ kind: "table" }]],
    ["a|b\n|x|-|", [{ kind: "paragraph" }]],
    ["a|b\n---", [{ kind: "paragraph" }, { kind: "rule" }]],
  ];

  it.each(blocks)("reads lines %#", (lines, expected) => {
    expect(readMarkdown(lines)).toMatchObject(expected);
  });

  it("keeps what stands in a heading and a cell", () => {
    expect(readMarkdown("# A #b  ##")).toEqual([{ kind: "heading", level: 1, content: [{ kind: "text", text: "A #b" }] }]);
    expect(readMarkdown("|a|b|\n|-|-|\n|1||")).toMatchObject([{ head: [[{ text: "a" }], [{ text: "b" }]], rows: [[[{ text: "1" }], []]] }]);
  });
});

// What takes time with the square of its length is not done here before the test runs out of time: a minute and more for
// one text, where all of them take a second.
const SIZE = 60_000;
const UNITS = ["*", "_", "`", "[", "](", "[a](", "[a](b", "(", "**a ", "a** ", "_a ", "a_ ", "`a", "#", " #", " ", "\t", "\u2028", "| ", "|-", ":-|", "- ", "-", "> ", "1. ", "a", "\n", "- a\n", "> a\n", "|a\n", "```\n", "~~~", "a\n  b\n", "0123456789abcdef", "\u202e", "=", ".", '"', "—", "+"];
const BEGINNINGS = ["", "# a", "- ", "a|b\n|", "[a](https://a.example/"];
const growing = (() => {
  let made = "";
  for (let count = 1; made.length < SIZE; count++) made += "`".repeat(count) + "a";
  return made;
})();
const HOSTILE = [growing, ...UNITS.flatMap((unit) => BEGINNINGS.map((begin) => `${begin}${unit.repeat(SIZE / unit.length)}b`))];

describe("a text of the worst kind", () => {
  const routines: Record<string, (hostile: string) => unknown> = {
    readMarkdown,
    readInline,
    safeAddress,
    visible,
    plain,
    sentence,
    shortId,
    shortHashes,
    labelOf: (hostile) => labelOf(hostile, hostile),
    kindOf: (hostile) => kindOf(hostile, hostile, {}),
    fieldsOf: (hostile) => fieldsOf({ [hostile]: hostile }, {}, {}),
    toCsv: (hostile) => toCsv([hostile], [{ name: "a", value: (row) => row }]),
  };

  it.each(Object.entries(routines))("takes time in proportion to its length: %s", (_, routine) => {
    for (const hostile of HOSTILE) routine(hostile);
  }, 30_000);
});
