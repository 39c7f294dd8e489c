import { deepEqual } from "node:assert/strict";
import { test } from "node:test";
import { progressOf } from "../../src/show/progress.ts";

test("a job is so far of so many, and there is a rest", () => {
  deepEqual(progressOf({ done: 30, left_alone: 10, total: 100 }), { looked: 40, total: 100, left: 60 });
  deepEqual(progressOf({ done: 90, left_alone: 10, total: 100 }), { looked: 100, total: 100, left: 0 });
  deepEqual(progressOf({ done: 0, left_alone: 0, total: 0 }), { looked: 0, total: 0, left: 0 });
});

test("a job that goes beyond what was counted is never so far of fewer, and its rest is not known", () => {
  deepEqual(progressOf({ done: 1_750_000, left_alone: 0, total: 100_000 }), { looked: 1_750_000, total: null, left: null });
  deepEqual(progressOf({ done: 100_000, left_alone: 1, total: 100_000 }), { looked: 100_001, total: null, left: null });
});
