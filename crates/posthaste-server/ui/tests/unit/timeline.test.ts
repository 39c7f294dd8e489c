import { deepEqual, equal, ok } from "node:assert/strict";
import { test } from "node:test";
import type { ShownLife, SinkLife } from "../../src/api/shapes.ts";
import { type Moment, folded, moments } from "../../src/pages/timeline.ts";

const at = (second: number): string => new Date(Date.UTC(2026, 10, 15, 8, 0, second)).toISOString();

function life(sinks: readonly Partial<SinkLife>[], acts: ShownLife["acts"] = []): ShownLife {
  const sink = { sink: "out", progress: "passed", position: 9, holds_back: 0, retired: false } as const;
  return {
    event: { seq: 10, id: "a", topic: "t", appended_at: at(0) } as ShownLife["event"],
    acts, in_log: true, sinks: sinks.map((one) => ({ ...sink, ...one })),
  };
}

const texts = (all: readonly Moment[]): string[] => all.map(({ text }) => text);
const none = new Map<string, never>();

test("what is delivered was appended and settled", () => {
  const all = moments(life([{ passed: { lane: 2, epoch: 7, settled_at: at(1) } as NonNullable<SinkLife["passed"]> }]), none);
  deepEqual(texts(all), ["appended as number 10", "settled in lane 2, epoch 7"]);
  equal(all[1]?.tone, "ok");
});

test("a dead letter has its attempts, its end, and what people did; the cursor that passed it delivered nothing", () => {
  const dead = {
    attempts: 2, error_code: "http.status_422", dead_at: at(9),
    history: [{ at: at(3), code: "http.status_503", error: "busy" }, { at: at(9), code: "http.status_422", error: "no" }],
  } as unknown as NonNullable<SinkLife["dead"]>;
  const passed = { lane: 0, epoch: 1, settled_at: at(9) } as NonNullable<SinkLife["passed"]>;
  const act = { action: "replay", actor: "ann", reason: "mended", at: at(5) } as ShownLife["acts"][number];
  const all = moments(life([{ progress: "dead", dead, passed }], [act]), none);
  deepEqual(texts(all), ["appended as number 10", "attempt failed", "replay by ann: “mended”", "attempt failed", "given up after 2 attempts"]);
  deepEqual(all.map(({ tone }) => tone), ["begin", "bad", "act", "bad", "dead"]);
});

test("what was refused before it was sent had no attempt, and does not say that one failed", () => {
  const dead = { attempts: 0, error_code: "payload.not_json", dead_at: at(1), history: [{ at: at(1), code: "payload.not_json", error: "no" }] } as unknown as NonNullable<SinkLife["dead"]>;
  deepEqual(texts(moments(life([{ progress: "dead", dead }]), none)), ["appended as number 10", "refused", "given up without an attempt"]);
});

test("what waits stands at the end where it is due, and its last failure is not told twice", () => {
  const waiting = { attempts: 1, reason: "retry", destination: "", last_error: "busy", last_error_at: at(3), due_at: at(60) } as unknown as NonNullable<SinkLife["waiting"]>;
  const told = moments(life([{ progress: "deferred", waiting }]), none);
  deepEqual(texts(told), ["appended as number 10", "attempt failed", "waits: retry; due"]);
  const known = moments(life([{ progress: "deferred", waiting }]), new Map([["out", [{ at: at(3), code: "x", error: "busy" }]]]) as never);
  equal(texts(known).filter((text) => text === "attempt failed").length, 1);
});

test("behind another of its key it has no time of its own, and is last", () => {
  const waiting = { attempts: 0, reason: "held", destination: "", due_at: null } as unknown as NonNullable<SinkLife["waiting"]>;
  const all = moments(life([{ progress: "deferred", waiting, behind: 7 }], [{ action: "pause", actor: "a", reason: "b", at: at(50) } as ShownLife["acts"][number]]), none);
  equal(all.at(-1)?.text, "waits behind number 7 of its key");
  equal(all.at(-1)?.at, null);
});

test("long times without anything are folded, and short ones are not", () => {
  const moment = (ms: number | null): Moment => ({ at: ms, tone: "ok", sink: null, text: "x" });
  deepEqual(folded([moment(0), moment(60_000), moment(200_000), moment(null)]).map((step) => ("gapMs" in step ? step.gapMs : step.at)), [0, 60_000, 140_000, 200_000, null]);
  deepEqual(folded([]), []);
});

test("moments are in the order of time, whatever order they were found in", () => {
  const sinks = ["b", "a", "c"].map((sink, n) => ({ sink, passed: { lane: n, epoch: 1, settled_at: at(9 - n) } as NonNullable<SinkLife["passed"]> }));
  const times = moments(life(sinks), none).map((one) => one.at ?? 0);
  ok(times.every((time, n) => n === 0 || time >= (times[n - 1] ?? 0)));
});

test("a time that no clock can show breaks nothing: it is text, and at the end", () => {
  const far = "+294247-01-10T04:00:54.775807Z";
  const event = { ...life([]).event, deliver_at: far } as ShownLife["event"];
  const all = moments({ ...life([]), event }, none);
  deepEqual(all.map(({ at: ms, said }) => [ms === null, said]), [[false, at(0)], [true, far]]);
  deepEqual(folded(all), all);
});
