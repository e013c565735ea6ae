import { describe, expect, it } from "vitest";
import { toCsv } from "../../src/lib/export";
import { ago, compact, duration, plain, shortId, visible } from "../../src/lib/format";

describe("durations", () => {
  it.each([
    [0, "0 ms"],
    [950, "950 ms"],
    [1234, "1.2 s"],
    [59_400, "59 s"],
    [245_000, "4 min 5 s"],
    [3_600_000, "1 h"],
    [187_200_000, "2 d 4 h"],
    [-2000, "−2.0 s"],
  ])("%d ms are %s", (ms, words) => expect(duration(ms)).toBe(words));

  it("tells how long ago", () => {
    expect(ago("2026-01-01T00:00:00Z", Date.parse("2026-01-01T00:04:05Z"))).toBe("4 min ago");
    expect(ago(1000, 2000)).toBe("now");
    expect(ago(100_000, 2000)).toBe("now");
  });
});

it("shortens numbers and ids", () => {
  expect([compact(9999), compact(12_345), compact(1_250_000)]).toEqual(["9,999", "12.3K", "1.3M"]);
  expect([shortId("59a6612f-6c1e-8a5f-a361-3ce300b81425"), shortId("builder-linear")]).toEqual(["59a6612f", "builder-linear"]);
  expect(plain("ALL_SWARMS_READY")).toBe("All swarms ready");
});

it("shows characters that could disguise a text", () => {
  expect(visible("a\u202eb\u0000c\u001b[31m\n\ttext")).toBe("a\\u202eb\\u0000c\\u001b[31m\n\ttext");
});

it("writes CSV that no spreadsheet runs", () => {
  const rows = [{ name: '=HYPERLINK("x")', value: -1 }, { name: 'a, "b"\nc', value: null }];
  const csv = toCsv(rows, [
    { name: "name", value: (row) => row.name },
    { name: "value", value: (row) => row.value },
  ]);
  expect(csv).toBe('name,value\r\n"\'=HYPERLINK(""x"")",-1\r\n"a, ""b""\nc",\r\n');
});
