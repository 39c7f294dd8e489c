// One sink: what goes in and out, what waits, what is dead, and what may be done about it.

import { askForControl } from "../acts/control-dialog.tsx";
import { whyNoAct } from "../acts/rights.ts";
import type { ShownOutbox, SinkReport, SinkStatus } from "../api/shapes.ts";
import { newest } from "../charts/series.ts";
import { series } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { Chip } from "../parts/chip.tsx";
import { Code, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { link } from "../place/here.ts";
import { count, millis, number, plural, rate, span } from "../show/number.ts";

/** What all relays say of a sink. */
export function reportsOf(now: ShownOutbox, sink: string): SinkReport[] {
  const said = (now.reports ?? []).map(({ said }) => said);
  return said.flatMap((one) => (one.kind === "known" ? one.report.sinks.filter((report) => report.sink === sink) : []));
}

export function SinkState({ sink, reports }: { sink: SinkStatus; reports: readonly SinkReport[] }) {
  if (sink.retired) return <Chip tone="quiet">left the configuration</Chip>;
  if (sink.paused) return <Chip tone="paused">paused</Chip>;
  if (reports.some((report) => report.out_of_reach != null)) return <Chip tone="bad" icon="warn">out of reach</Chip>;
  const away = new Set(reports.flatMap((report) => (report.destinations ?? []).map((at) => at.destination))).size
    + Math.max(0, ...reports.map((report) => report.more_destinations ?? 0));
  if (away > 0) return <Chip tone="warn">{plural(away, "destination")} out of reach</Chip>;
  const orphans = sink.lanes.filter((lane) => lane.owner == null).length;
  if (orphans > 0) return <Chip tone="warn">{orphans === sink.lanes.length ? "no relay" : `${number(orphans)} lanes without a relay`}</Chip>;
  return sink.delivered_per_second > 0 || sink.backlog.count > 0 ? <Chip tone="ok">delivers</Chip> : <Chip tone="quiet">at rest</Chip>;
}

/** The slowest relay's figures: a mean of quantiles is none. */
function slowest(reports: readonly SinkReport[], which: "p50_ms" | "p99_ms"): number | null {
  const all = reports.flatMap((report) => (report.pulse == null ? [] : [report.pulse[which]]));
  return all.length === 0 ? null : Math.max(...all);
}

export function SinkCard({ sink, now }: { sink: SinkStatus; now: ShownOutbox }) {
  const reports = reportsOf(now, sink.sink);
  const coming = newest(series.value, sink.sink, "in_per_s");
  const going = newest(series.value, sink.sink, "out_per_s") ?? sink.delivered_per_second;
  const p50 = slowest(reports, "p50_ms") ?? newest(series.value, sink.sink, "p50_ms");
  const p99 = slowest(reports, "p99_ms") ?? newest(series.value, sink.sink, "p99_ms");
  const away = reports.map((report) => report.out_of_reach).find((one) => one != null);
  const gain = going - (coming ?? 0);
  const drains = sink.backlog.count > 100 && coming !== null && gain > 0 ? sink.backlog.count / gain : null;
  const why = whyNoAct("operate", "control");
  const of = ["sink", sink.sink] as const;
  return <article class="card" aria-label={`Sink ${sink.sink}`} data-sink={sink.sink}>
    <header class="card-head"><h2><Said text={sink.sink} most={60} /></h2><SinkState sink={sink} reports={reports} /></header>
    {sink.set_by != null && (sink.paused || sink.rate_limit_per_s != null) && <p class="card-note">
      {sink.paused ? "Paused" : `At most ${rate(sink.rate_limit_per_s)}`} by <Said text={sink.set_by.actor} most={60} />, <When at={sink.set_by.at} as="relative" />: “<Said text={sink.set_by.reason} most={160} />”
      {sink.set_by.until != null && <>, until <When at={sink.set_by.until} /></>}
    </p>}
    {away != null && <p class="card-note card-note-bad">Out of reach since <When at={away.since} />: <Code text={away.code} /> <Said text={away.error} most={160} /></p>}
    <dl class="figures">
      <div class="figure"><dt>in</dt><dd>{rate(coming)}</dd></div>
      <div class="figure"><dt>out</dt><dd>{rate(going)}</dd></div>
      <div class="figure"><dt>backlog</dt><dd class={sink.backlog.count > 1_000 ? "tone-warn" : undefined}>{count(sink.backlog)}{drains !== null && <small>drains in {span(drains)}</small>}</dd></div>
      <div class="figure"><dt>oldest</dt><dd class={sink.oldest_age_seconds > 60 ? "tone-warn" : undefined}>{sink.oldest_age_seconds > 0 ? span(sink.oldest_age_seconds) : "–"}</dd></div>
      <div class="figure"><dt>p50</dt><dd>{millis(p50)}</dd></div>
      <div class="figure"><dt>p99</dt><dd>{millis(p99)}</dd></div>
      <div class="figure"><dt>deferred</dt><dd>{sink.deferred.count > 0 ? <a href={link("deferred", "", { sink: sink.sink })}>{count(sink.deferred)}</a> : "0"}</dd></div>
      <div class="figure"><dt>dead</dt><dd>{sink.dead.count > 0 ? <a class="tone-bad" href={link("dead", "", { sink: sink.sink })}>{count(sink.dead)}</a> : "0"}</dd></div>
    </dl>
    <footer class="card-foot">
      {sink.paused
        ? <Act small kind="primary" act="resume" why={why} onPress={() => askForControl({ act: "resume", target: of, outbox: now.outbox })} label={`Resume sink ${sink.sink}`}>Resume…</Act>
        : <Act small act="pause" why={why} onPress={() => askForControl({ act: "pause", target: of, outbox: now.outbox })} label={`Pause sink ${sink.sink}`}>Pause…</Act>}
      <Act small act="rate" why={why} onPress={() => askForControl({ act: "rate", target: of, outbox: now.outbox, rateNow: sink.rate_limit_per_s ?? null })} label={`Rate of sink ${sink.sink}`}>
        Rate…
      </Act>
      <a class="card-lanes" href={link("lanes")}>{plural(sink.lanes.filter((lane) => lane.owner != null).length, "lane")} of {number(sink.lanes.length)} owned</a>
    </footer>
  </article>;
}
