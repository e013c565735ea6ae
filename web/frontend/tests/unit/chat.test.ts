import { describe, expect, it } from "vitest";
import { readInline, readMarkdown, safeAddress } from "../../src/lib/markdown";
import { reduceChat, toMarkdown, type ChatState } from "../../src/state/chat";

const state = (text: string): ChatState => ({
  session_id: "c",
  revision: 1,
  props: { messages: [], pressure: 0, status: "ready", canSend: true, canCompress: false, canClear: false },
  answer: { state: "thinking", message: "hello", text, actions: [], error: null, tokens: null, cost: null },
});

describe("Markdown", () => {
  it("never makes a link of anything but http and https", () => {
    for (const address of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "//evil.example", "/runs", "\u0001javascript:alert(1)"]) {
      expect(safeAddress(address), address).toBeNull();
      expect(readInline(`[click](${address})`).some((one) => one.kind === "link"), address).toBe(false);
    }
    expect(readInline("[docs](https://example.org/a)")).toEqual([{ kind: "link", to: "https://example.org/a", content: [{ kind: "text", text: "docs" }] }]);
  });

  it("keeps HTML as text, and loads no image", () => {
    expect(readMarkdown("<script>alert(1)</script>")).toEqual([{ kind: "paragraph", content: [{ kind: "text", text: "<script>alert(1)</script>" }] }]);
    expect(JSON.stringify(readMarkdown("![x](http://evil.example/x.png)"))).not.toContain('"image"');
  });

  it("reads blocks, also of an answer that is not finished", () => {
    expect(readMarkdown("# A\n\n- one\n- **two**\n\n1. x\n\n> q\n\n```py\nprint(1)\n```\n\n|a|b|\n|-|-|\n|1|2|\n\n---").map((one) => one.kind)).toEqual(["heading", "list", "list", "quote", "code", "table", "rule"]);
    expect(readMarkdown("```py\nprint(")).toEqual([{ kind: "code", language: "py", text: "print(" }]);
    expect(readMarkdown("a **b")[0]).toEqual({ kind: "paragraph", content: [{ kind: "text", text: "a **b" }] });
  });

  it("ends on hostile texts", () => {
    for (const text of ["*".repeat(20_000), "> ".repeat(5_000) + "x", "[".repeat(20_000), "`".repeat(20_000), "**a ".repeat(5_000), "|".repeat(20_000)]) {
      expect(readMarkdown(text).length, text.slice(0, 8)).toBeGreaterThan(0);
    }
  });
});

describe("a conversation", () => {
  it("grows by text, and is replaced by a state", () => {
    const grown = reduceChat(state("One"), { event: "text", data: { delta: " word" } });
    expect(grown?.answer?.text).toBe("One word");
    expect(reduceChat(grown, { event: "state", data: state("") })?.answer?.text).toBe("");
    expect(reduceChat(null, { event: "text", data: { delta: "x" } })).toBeNull();
  });

  it("is exported with everything that was said", () => {
    const text = toMarkdown({ session_id: "c", agent: "helper", dropped: 2, messages: [{ role: "user", content: "hi", timestamp: "t" }] });
    expect(text).toContain("2 older messages");
    expect(text).toContain("## You, t\n\nhi");
  });
});
