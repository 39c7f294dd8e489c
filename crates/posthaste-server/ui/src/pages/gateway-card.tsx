// The gateway in front of an outbox: how it is, and who may hand in events by it.

import { useRef } from "preact/hooks";
import type { Gateway, ShownOutbox } from "../api/shapes.ts";
import { Chip } from "../parts/chip.tsx";
import { useLook } from "../parts/look.ts";
import { LackNote } from "../parts/problem-note.tsx";
import { Rows } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { number, plural, rate } from "../show/number.ts";

const COUNTS: Readonly<Record<string, string>> = {
  shared: "together with the other gateways",
  local: "by itself",
  open: "no more, and lets all pass",
  closed: "no more, and refuses all",
};

export function GatewayCard({ of }: { of: ShownOutbox }) {
  // Where there is none, it is not asked for again.
  const had = useRef(false);
  const { data, problem } = useLook<Gateway>("gateway", had.current && of);
  had.current = data !== null || problem !== null;
  if (data?.outbox !== of.outbox) return null;
  const { standing: now, unreachable: why } = data;
  const many = data.tenants_count ?? 0;
  const lost = now?.limiter_lost;
  const own = (text: string, isOwn: boolean) => isOwn ? text : <span class="quiet">{text} (default)</span>;
  return <section class="panel" data-gateway>
    <div class="panel-head"><h2>Gateway</h2>
      {now ? <Chip tone={now.ready ? lost ? "warn" : "ok" : "bad"}>{now.ready ? lost ? "limiter lost" : "takes events" : "not ready"}</Chip> : <Chip tone="quiet">not in this process</Chip>}</div>
    <p>{now ? <><Said text={`${now.url}: ${now.why}`} />. It counts tenants’ events {COUNTS[now.limiter]}{lost && <>, because <Said text={lost} most={300} /></>}.</> : `By this configuration it listens at ${data.listen}.`}</p>
    {now && <p class="quiet">{plural(now.requests, "request")} since it began, {number(now.refused)} refused; {plural(now.queued_events, "event")} on the way into the database.</p>}
    {why ? <LackNote why={why} /> : <details><summary>{plural(many, "tenant")}{many > data.tenants.length && `, the first ${number(data.tenants.length)} shown`}</summary>
      <Rows caption="Tenants" rows={data.tenants} keyOf={(one) => one.tenant} empty="posthaste gateway keys new NAME makes one." columns={[
        { head: "Tenant", as: "wide", cell: (one) => <Said text={one.tenant} /> },
        { head: "State", as: "fit", cell: (one) => one.paused ? <Chip tone="paused">paused</Chip> : <Chip tone="ok">may hand in</Chip> },
        { head: "Rate", as: "num", cell: (one) => own(rate(one.rate_per_s), one.has_own_rate) },
        { head: "Burst", as: "num", cell: (one) => own(number(one.burst), one.has_own_burst) },
        { head: "Good keys", as: "num", cell: (one) => number(one.good_keys) },
        { head: "Note", as: "main", cell: (one) => <Said text={one.note ?? ""} most={160} /> },
      ]} /></details>}
  </section>;
}
