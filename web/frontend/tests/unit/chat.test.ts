import { describe, expect, it } from "vitest";
import { readInline, readMarkdown, safeAddress } from "../../src/lib/markdown";
import { earlier, reduceChat, seen, toMarkdown, type ChatState } from "../../src/state/chat";

const state = (text: string): ChatState => ({
  session_id: "c",
  revision: 1,
  props: { messages: [], pressure: 0, status: "ready", canSend: true, canCompress: false, canClear: false },
  hidden: 0,
  shortened: 0,
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

  it("says what the agent sees of it", () => {
    const words = (hidden: number, shortened: number, status = "ready") => seen({ hidden, shortened, props: { ...state("").props, status } });
    expect(words(0, 0)).toBe("The agent sees the whole conversation.");
    expect(words(0, 0, "compressed")).toBe("The agent sees the whole conversation.");
    expect(words(11, 0)).toBe("The agent sees 11 earlier turns not at all.");
    expect(words(11, 1)).toBe("The agent sees 1 earlier turn shortened and 11 earlier turns not at all.");
    expect(words(11, 1, "thinking")).toBe("The agent is thinking.");
  });

  it("opens to what the window does not hold, wherever it stood", () => {
    const said = (id: string) => ({ id, role: "user", content: id, timestamp: id });
    const held = ["t1", "paged", "t4"].map((id) => ({ ...said(id), isPreserved: true }));
    const history = { session_id: "c", agent: "helper", dropped: 0, messages: ["t1", "t2", "t3", "t4"].map(said) };
    expect(earlier(history, held).map((one) => one.id)).toEqual(["t2", "t3"]);
  });

  it("is exported with everything that was said", () => {
    const text = toMarkdown({ session_id: "c", agent: "helper", dropped: 2, messages: [{ role: "user", content: "hi", timestamp: "t" }] });
    expect(text).toContain("2 older messages");
    expect(text).toContain("## You, t\n\nhi");
  });
});
