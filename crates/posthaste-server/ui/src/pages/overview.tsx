// Overview: one sentence that says how it is, a card for each sink, and the last hour.

import { askForControl } from "../acts/control-dialog.tsx";
import { whyNoAct } from "../acts/rights.ts";
import type { ShownOutbox } from "../api/shapes.ts";
import { ChartGrid } from "../charts/chart-grid.tsx";
import { outbox, outboxes, whyAway } from "../live/picture.ts";
import { refused } from "../live/stream.ts";
import { Act } from "../parts/act.tsx";
import { Chip } from "../parts/chip.tsx";
import { LackNote } from "../parts/problem-note.tsx";
import { Waiting } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { here } from "../place/here.ts";
import { GatewayCard } from "./gateway-card.tsx";
import { Health, Unreachable } from "./health.tsx";
import { OutboxList } from "./outbox-list.tsx";
import { SinkCard } from "./sink-card.tsx";

export function OverviewPage() {
  const name = here.value.outbox;
  const now = outbox.value?.outbox === name ? outbox.value : null;
  const why = whyAway(name);
  return <>
    <h1 class="unseen">Overview of {name}</h1>
    {refused.value && <LackNote why={`This page is not live, and looks again every few seconds: ${refused.value}.`} />}
    {why !== undefined ? <Unreachable name={name} why={why} /> : now === null ? <Waiting /> : <Seen now={now} />}
    {(outboxes.value?.outboxes.length ?? 0) > 1 && <OutboxList />}
  </>;
}

function Seen({ now }: { now: ShownOutbox }) {
  const sinks = now.sinks ?? [];
  return <>
    <Health now={now} />
    {now.adopted && <p class="quiet adopted">An adopted table: <Said text={now.adopted} /></p>}
    {(now.paused_routes ?? []).map(({ route, set_by: by }) => <p key={route} class="note note-quiet"><Chip tone="paused">paused</Chip>
      <span class="note-text">Route <Said text={route} />{by != null && <> by <Said text={by.actor} most={60} />: “<Said text={by.reason} most={160} />”</>}</span>
      <Act small why={whyNoAct("operate", "control")} onPress={() => askForControl({ act: "resume", target: ["route", route], outbox: now.outbox })} label={`Resume route ${route}`}>Resume…</Act></p>)}
    {sinks.length === 0
      ? <p class="empty">No sinks yet: no relay has run on this outbox. <code class="code">posthaste run</code> begins.</p>
      : <section class="cards" aria-label="Sinks">{sinks.map((sink) => <SinkCard key={sink.sink} sink={sink} now={now} />)}</section>}
    <ChartGrid />
    <GatewayCard of={now} />
  </>;
}
