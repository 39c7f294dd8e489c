import { deepEqual, equal, ok } from "node:assert/strict";
import { test } from "node:test";
import type { Point, Series } from "../../src/api/shapes.ts";
import { FIGURES, addPoint, lengthOf, newest, timesOf } from "../../src/charts/series.ts";

const BEGIN = Date.UTC(2026, 10, 15, 8, 0, 0);
const STEP = 5_000;

function point(step: number, out: number, sink = "out"): Point {
  return { at: new Date(BEGIN + step * STEP).toISOString(), sinks: { [sink]: { out_per_s: out } } };
}

function filled(points: readonly Point[]): Series {
  let series: Series | null = null;
  for (const one of points) series = addPoint(series, one);
  ok(series);
  return series;
}

test("points follow one another", () => {
  const series = filled([point(0, 1), point(1, 2), point(2, 3)]);
  deepEqual(series.sinks["out"]?.out_per_s, [1, 2, 3]);
  deepEqual(timesOf(series), [0, 5, 10].map((seconds) => BEGIN / 1_000 + seconds));
  equal(newest(series, "out", "out_per_s"), 3);
});

test("a gap is a hole, and the time of what follows is right", () => {
  const series = filled([point(0, 1), point(4, 5)]);
  deepEqual(series.sinks["out"]?.out_per_s, [1, null, null, null, 5]);
  equal(timesOf(series).at(-1), (BEGIN + 4 * STEP) / 1_000);
  equal(newest(series, "out", "out_per_s"), 5);
  equal(newest(series, "out", "backlog"), null);
});

test("a point that is there already, or older, changes nothing", () => {
  const series = filled([point(0, 1), point(1, 2)]);
  equal(addPoint(series, point(1, 9)), series);
  equal(addPoint(series, point(-3, 9)), series);
});

test("a sink that comes later has holes before, and one that goes has them behind", () => {
  const series = filled([point(0, 1), point(1, 2, "new"), point(2, 3)]);
  deepEqual(series.sinks["new"]?.out_per_s, [null, 2, null]);
  deepEqual(series.sinks["out"]?.out_per_s, [1, null, 3]);
  for (const figures of Object.values(series.sinks)) for (const name of FIGURES) equal(figures[name]?.length, 3, name);
});

test("more than an hour is not kept, whether it came point by point or in one gap", () => {
  const day = filled(Array.from({ length: 2_000 }, (_, n) => point(n, n)));
  equal(lengthOf(day), 720);
  equal(timesOf(day).at(-1), (BEGIN + 1_999 * STEP) / 1_000);
  equal(day.sinks["out"]?.out_per_s?.[0], 1_280);
  const slept = filled([point(0, 1), point(100_000, 2)]);
  equal(lengthOf(slept), 720);
  equal(timesOf(slept).at(-1), (BEGIN + 100_000 * STEP) / 1_000);
  equal(newest(slept, "out", "out_per_s"), 2);
});

test("a point without a time does not break what is there", () => {
  const broken = addPoint(filled([point(0, 1)]), { at: "soon", sinks: {} });
  equal(lengthOf(broken) <= 1, true);
});
