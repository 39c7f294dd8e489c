// Figures of the last hour, as the stream brings them. Pure.

import type { Figures, Point, Series } from "../api/shapes.ts";

const HOUR_MS = 3_600_000;

export const FIGURES: readonly (keyof Figures)[] = ["in_per_s", "out_per_s", "backlog", "oldest_s", "p50_ms", "p99_ms", "deferred", "dead"];

/** How many points a series has. */
export function lengthOf(series: Series): number {
  let most = 0;
  for (const sink of Object.values(series.sinks)) {
    for (const values of Object.values(sink)) most = Math.max(most, values?.length ?? 0);
  }
  return most;
}

/** The series with one more point. What is older than an hour goes; a gap is filled with nothing. */
export function addPoint(series: Series | null, point: Point): Series {
  const at = Date.parse(point.at);
  const step = series?.step_ms || 5_000;
  if (series === null || !Number.isFinite(at - Date.parse(series.from))) {
    return { step_ms: step, from: point.at, sinks: appended({}, 0, 0, point) };
  }
  const from = Date.parse(series.from);
  const length = lengthOf(series);
  const place = Math.round((at - from) / step);
  // A clock that went back, or the same point once more after a new connection.
  if (place < length) return series;
  const most = Math.ceil(HOUR_MS / step);
  const gap = Math.min(place - length, most);
  const sinks = appended(series.sinks, length, gap, point);
  const over = Math.max(0, length + gap + 1 - most);
  if (over > 0) {
    for (const sink of Object.values(sinks)) {
      for (const name of FIGURES) sink[name] = sink[name]?.slice(over);
    }
  }
  const begins = at - (length + gap - over) * step;
  return { step_ms: step, from: new Date(begins).toISOString(), sinks };
}

function appended(before: Series["sinks"], length: number, gap: number, point: Point): Series["sinks"] {
  const sinks: Series["sinks"] = {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(point.sinks)])) {
    const figures: Partial<Figures> = {};
    for (const figure of FIGURES) {
      const old = before[name]?.[figure] ?? [];
      const filler = Array.from({ length: length - old.length + gap }, () => null);
      figures[figure] = [...old, ...filler, point.sinks[name]?.[figure] ?? null];
    }
    sinks[name] = figures;
  }
  return sinks;
}

/** The newest value that is known, of the last two points: an older one says nothing of now. */
export function newest(series: Series | null, sink: string, figure: keyof Figures): number | null {
  const values = series?.sinks[sink]?.[figure] ?? [];
  return values[values.length - 1] ?? values[values.length - 2] ?? null;
}

/** Times of all points, in seconds, as the chart wants them. */
export function timesOf(series: Series): number[] {
  const from = Date.parse(series.from) / 1_000;
  return Array.from({ length: lengthOf(series) }, (_, index) => from + (index * series.step_ms) / 1_000);
}
