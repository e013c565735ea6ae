import { describe, expect, it } from "vitest";
import { toCsv } from "../../src/lib/export";
import { ago, compact, cut, dateTime, duration, plain, shortHashes, shortId, utc, visible, zone } from "../../src/lib/format";

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
  expect([shortId("59a6612f-6c1e-8a5f-a361-3ce300b81425"), shortId("builder-linear")]).toEqual(["…00b81425", "builder-linear"]);
  expect(plain("ALL_SWARMS_READY")).toBe("All swarms ready");
});

it("names the zone of a time, and tells the time in UTC", () => {
  const at = Date.parse("2026-01-01T00:04:05.12Z");
  expect(utc(at)).toBe("2026-01-01 00:04:05.120 UTC");
  expect(dateTime(at).endsWith(zone(at))).toBe(true);
  expect([zone(at), zone("no time"), utc("no time")]).toEqual([expect.stringMatching(/^UTC([+−]\d{1,2}(:\d\d)?)?$/), "UTC", "no time"]);
});

it("shows characters that could disguise a text", () => {
  expect(visible("a\u202eb\u0000c\u001b[31m\n\ttext")).toBe("a\\u202eb\\u0000c\\u001b[31m\n\ttext");
});

it("cuts a text between characters, and only where that makes it shorter", () => {
  expect([cut("a kettle", 8), cut("a kettle", 7), cut("a kettle", 3), cut("🔥🔥🔥", 3), cut("🔥🔥🔥", 2)]).toEqual(["a kettle", "a kett…", "a…", "🔥🔥🔥", "🔥…"]);
});

it("shortens a hash within a text at its end, and nothing that is longer or shorter", () => {
  const hash = "09956e21".repeat(8);
  expect(shortHashes(`offers sha256:${hash} from a`)).toBe("offers sha256:…09956e21 from a");
  expect([shortHashes(`${hash}0`), shortHashes(hash.slice(1)), shortHashes("plain")]).toEqual([`${hash}0`, hash.slice(1), "plain"]);
});

it("leaves joiners where emoji and scripts need them, and shows those that hide", () => {
  for (const needed of ["👩‍👩‍👧‍👦", "👩🏽‍🚒", "🏳️‍🌈", "می‌خواهم", "क्‍ष"]) expect(visible(needed)).toBe(needed);
  expect(visible("pay\u200dpal\u200c")).toBe("pay\\u200dpal\\u200c");
  expect(visible("می\u200c\u200cخواهم")).toBe("می\\u200c\\u200cخواهم");
  expect(visible("👩\u200d\u200d👧")).toBe("👩\\u200d\\u200d👧");
});

it("writes CSV that no spreadsheet runs", () => {
  const rows = [{ name: '=HYPERLINK("x")', value: -1 }, { name: 'a, "b"\nc', value: null }];
  const csv = toCsv(rows, [
    { name: "name", value: (row) => row.name },
    { name: "value", value: (row) => row.value },
  ]);
  expect(csv).toBe('name,value\r\n"\'=HYPERLINK(""x"")",-1\r\n"a, ""b""\nc",\r\n');
});
