// The four charts of the overview.

import type { Figures, Series } from "../api/shapes.ts";
import { useLook } from "../parts/look.ts";
import { path } from "../api/request.ts";
import { series } from "../live/picture.ts";
import { here } from "../place/here.ts";
import { axisNumber, axisSpan, millis, number, rate, span } from "../show/number.ts";
import { Chart } from "./chart.tsx";

export interface ChartPlan {
  readonly title: string;
  /** Figures in it: the first is drawn full, the second in dashes. */
  readonly figures: readonly (readonly [figure: keyof Figures, words: string])[];
  readonly show: (value: number | null) => string;
  /** The same, shorter. */
  readonly axis: (value: number | null) => string;
}

const CHARTS: readonly ChartPlan[] = [
  { title: "Events a second", figures: [["out_per_s", "out"], ["in_per_s", "in"]], show: rate, axis: axisNumber },
  { title: "Backlog", figures: [["backlog", "backlog"]], show: number, axis: axisNumber },
  { title: "Oldest", figures: [["oldest_s", "oldest"]], show: span, axis: axisSpan },
  { title: "Latency", figures: [["p99_ms", "p99"], ["p50_ms", "p50"]], show: millis, axis: (ms) => axisSpan(ms === null ? null : ms / 1_000) },
];

export function ChartGrid() {
  const streamed = series.value;
  // A page that the stream has not reached yet asks once; an older server has no series, and no charts then.
  const asked = useLook<Series>(streamed === null ? path`outboxes/${here.value.outbox}/series` : null);
  const shown = streamed ?? asked.data;
  if (shown === null || Object.keys(shown.sinks).length === 0) return null;
  return <section class="charts" aria-label="The last hour">
    {CHARTS.map((plan) => <Chart key={plan.title} plan={plan} series={shown} />)}
  </section>;
}
