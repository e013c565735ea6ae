import { expect, it, vi } from "vitest";
import { batched } from "../../src/lib/batches";

it("asks once for what is wanted together, and again after a failure", async () => {
  const ask = vi.fn(async (keys: number[]) => new Map(keys.filter((key) => key < 9).map((key) => [key, `line ${key}`])));
  const of = batched(ask, 3, 0);
  expect(await Promise.all([of(1), of(1), of(2), of(9), of(4)])).toEqual(["line 1", "line 1", "line 2", null, "line 4"]);
  expect(ask.mock.calls).toEqual([[[1, 2, 9]], [[4]]]);
  ask.mockRejectedValueOnce(new Error("away"));
  await expect(of(5)).rejects.toThrow("away");
  expect(await of(5)).toBe("line 5");
});
