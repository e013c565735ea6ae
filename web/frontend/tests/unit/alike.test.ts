import { expect, it } from "vitest";
import { alike } from "../../src/lib/alike";

const NAMES = ["clerk", "cashier", "lab-worker-1", "lab-worker-2", "01a21b52-b2ba-7739-b175-a1ff7e6ae6cd"];

it.each([
  ["clerc", ["clerk"]],
  ["Clerk", ["clerk"]],
  ["lab-worker-3", ["lab-worker-1", "lab-worker-2"]],
  ["worker", ["lab-worker-1", "lab-worker-2"]],
  ["7e6ae6cd", ["01a21b52-b2ba-7739-b175-a1ff7e6ae6cd"]],
  ["", []],
  ["zzz", []],
  ["x".repeat(50_000), []],
])("finds names like %s", (name, expected) => expect(alike(name, NAMES)).toEqual(expected));
