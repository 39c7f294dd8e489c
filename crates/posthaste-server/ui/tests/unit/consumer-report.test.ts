import { deepEqual, equal } from "node:assert/strict";
import { test } from "node:test";
import { readReport } from "../../src/pages/consumer-report.ts";

test("a report of another shape is of another version", () => {
  for (const other of [null, undefined, 1, "ready", [], {}, { ready: "yes" }, { shape: 9 }]) equal(readReport(other), null, JSON.stringify(other));
});

test("what is known is read, and what is not is left out", () => {
  deepEqual(readReport({ ready: false, why: "waits", unavailable: ["bank", 7, null], error: "", last_error: "e", latency: { p50_ms: 3, p99_ms: 40.5 }, moods: [] }),
    { ready: false, why: "waits", error: null, lastError: "e", away: ["bank"], p50Ms: 3, p99Ms: 40.5 });
  deepEqual(readReport({ ready: true, why: 7, unavailable: "bank", latency: "slow" }), { ready: true, why: "", error: null, lastError: null, away: [], p50Ms: null, p99Ms: null });
});
