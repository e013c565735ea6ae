import { describe, expect, it } from "vitest";
import { effectOf } from "../../src/lib/effects";

const claim = "00000000-0000-0000-0000-000000000007";

describe("an entry about an effect", () => {
  it("has its key, and the digest of what was made", () => {
    expect(effectOf({ metadata: { effect: { key: "charge", claim, entry: "claimed", attempt: 1 } } })).toEqual({ entry: "claimed", key: "charge", digest: "", said: [] });
    expect(effectOf({ metadata: { effect: { key: "charge", claim, entry: "made", digest: "ab12", reference: "ch_7", attempt: 1 } } })).toEqual({
      entry: "made",
      key: "charge",
      digest: "ab12",
      said: ["ch_7"],
    });
  });

  it("says why it is unknown, or was released", () => {
    expect(effectOf({ metadata: { effect: { key: "charge", claim, entry: "released", note: "nothing was sent" } } })?.said).toEqual(["nothing was sent"]);
  });

  it("is no hop of a delivery, nor one whose text is withheld", () => {
    expect(effectOf({ metadata: { error: "no" } })).toBeNull();
    expect(effectOf({ metadata: null })).toBeNull();
    expect(effectOf({ metadata: { effect: "made" } })).toBeNull();
    expect(effectOf({ metadata: { effect: { key: 5 } } })).toEqual({ entry: "", key: "", digest: "", said: [] });
  });
});
