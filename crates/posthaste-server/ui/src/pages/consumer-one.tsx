// One consumer: partitions, processes with what they wait for, dead letters and what it set aside.

import { askForControl } from "../acts/control-dialog.tsx";
import { whyNoActOn } from "../acts/rights.ts";
import type { ShownConsumer } from "../api/shapes.ts";
import { Act } from "../parts/act.tsx";
import { Chip } from "../parts/chip.tsx";
import { LackNote } from "../parts/problem-note.tsx";
import { Rows } from "../parts/rows.tsx";
import { LongText, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { filter, here, link } from "../place/here.ts";
import { count, millis, number, plural, rate, span } from "../show/number.ts";
import { ConsumerDead } from "./consumer-dead.tsx";
import { ConsumerDeferred } from "./consumer-deferred.tsx";
import { readReport } from "./consumer-report.ts";
import { ConsumerState, behindOf, isAlive, lagOf, lateBy, secondsBehind } from "./consumers.tsx";
import { PageHead } from "./page-head.tsx";

const VIEWS = [["", "Partitions and processes"], ["dead", "Dead letters"], ["deferred", "Deferred"]] as const;

export function OneConsumer({ consumer }: { consumer: ShownConsumer }) {
  const view = here.value.filters["view"] ?? "";
  const why = whyNoActOn("operate", consumer.outbox);
  const of = ["consumer", consumer.consumer] as const;
  const control = (act: "pause" | "resume" | "rate"): void => askForControl({ act, target: of, outbox: consumer.outbox, rateNow: consumer.rate_limit_per_s ?? null });
  return <>
    <PageHead title={<>Consumer <Said text={consumer.consumer} most={120} /></>} about={<><a href={link("consumers")}>All consumers</a> · its inbox is in <Said text={consumer.outbox} /></>}>
      {consumer.paused ? <Act kind="primary" act="resume" why={why} onPress={() => control("resume")}>Resume…</Act> : <Act act="pause" why={why} onPress={() => control("pause")}>Pause…</Act>}
      <Act act="rate" why={why} onPress={() => control("rate")}>{consumer.rate_limit_per_s != null ? `At most ${rate(consumer.rate_limit_per_s)}…` : "Rate…"}</Act>
    </PageHead>
    <section class="panel"><dl class="facts pad">
      <div><dt>State</dt><dd><ConsumerState consumer={consumer} /></dd></div>
      <div><dt>Lag</dt><dd class="big-num">{number(lagOf(consumer))}</dd></div>
      <div><dt>Behind</dt><dd class="big-num">{span(behindOf(consumer))}</dd></div>
      <div><dt>Latency, p50 and p99</dt><dd class="big-num">{millis(lateBy(consumer, "p50Ms"))} <span class="quiet">/</span> {millis(lateBy(consumer, "p99Ms"))}</dd></div>
      <div><dt>Deferred</dt><dd class="big-num">{count(consumer.deferred)}{consumer.oldest_deferred_seconds != null && <small class="quiet small"> oldest {span(consumer.oldest_deferred_seconds)}</small>}</dd></div>
      <div><dt>Dead letters</dt><dd class={consumer.dead.count > 0 ? "big-num tone-bad" : "big-num"}>{count(consumer.dead)}</dd></div>
    </dl></section>
    {consumer.broker_error != null && <LackNote why={consumer.broker_error} />}
    <div class="tabs" role="group" aria-label="What is shown">
      {VIEWS.map(([name, words]) => <button key={name} type="button" class="tab" aria-pressed={view === name} onClick={() => filter({ view: name, fingerprint: "", letter: "", reason: "", code: "" })}>{words}
        {name === "dead" && consumer.dead.count > 0 && <span class="badge badge-bad">{count(consumer.dead)}</span>}{name === "deferred" && consumer.deferred.count > 0 && <span class="badge">{count(consumer.deferred)}</span>}</button>)}
    </div>
    {view === "dead" ? <ConsumerDead consumer={consumer} /> : view === "deferred" ? <ConsumerDeferred consumer={consumer} /> : <><Partitions consumer={consumer} /><Processes consumer={consumer} /></>}
  </>;
}

function Partitions({ consumer }: { consumer: ShownConsumer }) {
  return <section class="panel"><h2>Partitions</h2>
    <Rows caption={`Partitions of ${consumer.consumer}`} rows={consumer.partitions} keyOf={(one) => `${one.topic}/${one.partition}`} empty="None yet: it has not taken anything." columns={[
      { head: "Topic", as: "wide", cell: (one) => <Said text={one.topic} most={100} /> },
      { head: "Partition", as: "num", cell: (one) => number(one.partition) },
      { head: "Position", as: "num", cell: (one) => number(one.position) },
      { head: "Lag", as: "num", cell: (one) => one.lag != null && one.lag > 0 ? <b>{number(one.lag)}</b> : number(one.lag) },
      { head: "Behind", as: "num", cell: (one) => span(secondsBehind(one)) },
      { head: "Owner", as: "main", cell: (one) => <>
        {one.stopped != null ? <><Chip tone="bad">stopped</Chip> <Said text={one.stopped} most={240} /></> : one.owner == null ? <span class="quiet">nobody</span> : <span class="mono"><Said text={one.owner} most={60} /></span>}
        {one.foreign_position != null && <> <Chip tone="warn">moved</Chip> The group is at {number(one.foreign_position)}: somebody else moved it, without effect.</>}
        {one.unclean > 0 && <> <span class="quiet">{plural(one.unclean, "death")} here</span></>}
      </> },
      { head: "Saved", as: "fit", cell: (one) => <When at={one.saved_at} /> },
    ]} />
  </section>;
}

function Processes({ consumer }: { consumer: ShownConsumer }) {
  return <section class="panel"><h2>Processes</h2>
    <Rows caption={`Processes of ${consumer.consumer}`} rows={consumer.processes} keyOf={(process) => process.process} empty="No process has told of itself." columns={[
      { head: "Process", as: "wide", cell: (process) => <span class="mono"><Said text={process.process} most={60} /></span> },
      { head: "Version", as: "fit", cell: (process) => <Said text={process.version} most={30} /> },
      { head: "Says", as: "main", cell: (process) => <Says report={process.report} isHeard={isAlive(process.seen_at)} /> },
      { head: "Started", as: "fit", cell: (process) => <When at={process.started_at} /> },
      { head: "Seen", as: "fit", cell: (process) => <When at={process.seen_at} /> },
    ]} />
  </section>;
}

function Says({ report, isHeard }: { report: unknown; isHeard: boolean }) {
  const said = readReport(report);
  if (said === null) return <Chip tone="quiet">newer</Chip>;
  return <div class="says">
    <p>{!isHeard ? <Chip tone="quiet">not heard of lately</Chip> : said.ready ? <Chip tone="ok">ready</Chip> : <Chip tone="warn">not ready</Chip>} <Said text={said.why} most={200} /></p>
    {said.away.map((name) => <p key={name}><Chip tone="bad" icon="warn">breaker open</Chip> <Said text={name} most={80} /></p>)}
    {said.error !== null && <p><LongText text={said.error} most={300} /></p>}
    {said.lastError !== null && said.lastError !== said.error && <p class="quiet">last error: <LongText text={said.lastError} most={300} /></p>}
  </div>;
}
