// One chart over the last hour, a line for each sink, with the same as a table.

import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Series } from "../api/shapes.ts";
import { theme, timeMode } from "../show/clock.ts";
import { shortTime } from "../show/time.ts";
import type { ChartPlan } from "./chart-grid.tsx";
import { timesOf } from "./series.ts";

const HEIGHT = 132;
const INKS = 6;
/** Of the axis of time. */
const STEPS_S = [10, 30, 60, 120, 300, 600, 900, 1_800, 3_600];

/** A colour of the style sheet, as the canvas needs it. */
function ink(of: Element, name: string): string {
  const probe = document.createElement("i");
  probe.className = `ink-${name}`;
  of.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

function dataOf(plan: ChartPlan, series: Series): uPlot.AlignedData {
  const lines = Object.values(series.sinks).flatMap((sink) => plan.figures.map(([figure]) => sink[figure] ?? []));
  return [timesOf(series), ...lines] as uPlot.AlignedData;
}

export function Chart({ plan, series }: { plan: ChartPlan; series: Series }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const [round, setRound] = useState(0);
  const names = Object.keys(series.sinks);
  const mode = timeMode.value;
  const now = useRef(series);
  now.current = series;

  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const turn = (): void => setRound((before) => before + 1);
    dark.addEventListener("change", turn);
    return () => dark.removeEventListener("change", turn);
  }, []);

  useEffect(() => {
    const box = place.current;
    if (box === null) return undefined;
    const quiet = ink(box, "axis");
    const grid = { stroke: ink(box, "grid"), width: 1 };
    const lines = names.flatMap((_, index) => plan.figures.map(([, words], which): uPlot.Series => ({
      label: words, stroke: ink(box, String(index % INKS)), width: which === 0 ? 1.5 : 1, ...(which === 0 ? {} : { dash: [3, 3] }), points: { show: false },
    })));
    const axis: uPlot.Axis = { stroke: quiet, grid, ticks: { show: false }, font: "11px system-ui, sans-serif", gap: 4 };
    const made = new uPlot({
      width: Math.max(box.clientWidth, 120), height: HEIGHT, padding: [6, 16, 0, 0], legend: { show: false },
      cursor: { drag: { x: false, y: false }, points: { show: false }, y: false, dataIdx: (_, __, at) => at, sync: { key: "overview" } },
      scales: { x: { time: false }, y: { range: (_, __, max) => [0, max > 0 ? max * 1.1 : 1] } },
      axes: [
        { ...axis, size: 22, space: 46, incrs: STEPS_S, values: (_, all) => all.map((ts) => shortTime(ts * 1_000, mode === "utc" ? "utc" : "local", ts * 1_000).slice(0, 5)) },
        { ...axis, size: 44, space: 28, values: (_, all) => all.map(plan.axis) },
      ],
      series: [{}, ...lines],
      hooks: { setCursor: [(self) => setAt(self.cursor.idx ?? null)] },
    }, dataOf(plan, now.current), box);
    plot.current = made;
    const size = new ResizeObserver(() => made.setSize({ width: Math.max(box.clientWidth, 120), height: HEIGHT }));
    size.observe(box);
    return () => { size.disconnect(); made.destroy(); plot.current = null; };
  }, [names.join("\n"), theme.value, round, mode]);

  useEffect(() => { plot.current?.setData(dataOf(plan, series)); }, [series]);

  const times = timesOf(series);
  const shownAt = at ?? times.length - 1;
  return <figure class="chart">
    <figcaption class="chart-head"><span class="chart-title">{plan.title}</span>
      {at !== null && <span class="quiet chart-at">{shortTime((times[at] ?? 0) * 1_000, mode === "relative" ? "local" : mode, Date.now())}</span>}</figcaption>
    <div ref={place} class="chart-place" role="img" aria-label={`${plan.title} over the last hour; the numbers are in the table below`} />
    <ul class="chart-legend">
      {names.map((name, index) => <li key={name}><i class={`swatch ink-${index % INKS}`} aria-hidden="true" /><bdi class="said" title={name}>{name}</bdi>
        {plan.figures.map(([figure, words]) => <span key={figure} class="num">{plan.figures.length > 1 && <span class="quiet">{words} </span>}{plan.show(series.sinks[name]?.[figure]?.[shownAt] ?? null)}</span>)}</li>)}
    </ul>
    <Numbers plan={plan} series={series} />
  </figure>;
}

/** The same as a table: a line for each five minutes. */
function Numbers({ plan, series }: { plan: ChartPlan; series: Series }) {
  const [isOpen, open] = useState(false);
  const times = timesOf(series);
  const step = Math.max(1, Math.round(300_000 / series.step_ms));
  const places = times.map((_, index) => index).filter((index) => (times.length - 1 - index) % step === 0).reverse();
  const columns = Object.keys(series.sinks).flatMap((name) => plan.figures.map(([figure, words]) => ({ name, figure, words })));
  return <details class="chart-numbers" onToggle={(event) => open(event.currentTarget.open)}>
    <summary>Numbers<span class="unseen"> of {plan.title}</span></summary>
    {isOpen && <div class="scroll" tabIndex={0} role="region" aria-label={`${plan.title}, numbers`}><table class="plain">
      <caption class="unseen">{plan.title}, each five minutes</caption>
      <thead><tr><th scope="col">Time</th>{columns.map(({ name, words }) => <th key={name + words} scope="col" class="num"><bdi>{name}</bdi> {words}</th>)}</tr></thead>
      <tbody>{places.map((index) => <tr key={index}><th scope="row">{shortTime((times[index] ?? 0) * 1_000, "local", Date.now())}</th>
        {columns.map(({ name, figure, words }) => <td key={name + words} class="num">{plan.show(series.sinks[name]?.[figure]?.[index] ?? null)}</td>)}</tr>)}</tbody>
    </table></div>}
  </details>;
}
