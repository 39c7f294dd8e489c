// Lanes and relays: who owns what, how far each is, what relays say of themselves, and the parts of the log.

import { askForLanes, askForRewind } from "../acts/lane-dialogs.tsx";
import { whyNoAct } from "../acts/rights.ts";
import type { LaneStatus, RelayProcess, ShownOutbox, SinkStatus } from "../api/shapes.ts";
import { lacks, outbox, whyAway } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { Chip } from "../parts/chip.tsx";
import { LackNote } from "../parts/problem-note.tsx";
import { Rows, Waiting } from "../parts/rows.tsx";
import { Code, LongText, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { here } from "../place/here.ts";
import { bytes, millis, number, plural, rate, span } from "../show/number.ts";
import { PageHead } from "./page-head.tsx";

export function LanesPage() {
  const now = outbox.value;
  const away = whyAway(here.value.outbox);
  const lack = lacks.value.get("lanes");
  const why = whyNoAct("admin", "lanes");
  return <>
    <PageHead title="Lanes and relays" about="A lane is what a relay leases. More lanes spread a sink's work over several relays; the order of each key is kept.">
      {now !== null && <Act why={why} onPress={() => askForLanes(now.outbox, Math.max(1, ...(now.sinks ?? []).map((sink) => sink.lanes.length)))}>Change lanes…</Act>}
    </PageHead>
    {away !== undefined ? <LackNote why={away} /> : now === null ? <Waiting /> : <>
      <section class="panel"><h2>Relays</h2><Relays now={now} /></section>
      {lack !== undefined ? <LackNote why={lack} /> : (now.sinks ?? []).map((sink) => <Lanes key={sink.sink} sink={sink} now={now} />)}
      {(now.segments ?? []).length > 0 && <section class="panel"><h2>Segments of the log</h2>
        <Rows caption="Segments of the log" rows={now.segments ?? []} keyOf={(segment) => String(segment.segment)} columns={[
          { head: "Segment", as: "fit", cell: (segment) => number(segment.segment) },
          { head: "State", as: "fit", cell: (segment) => <Chip tone={segment.state === "current" ? "ok" : "quiet"}>{segment.state}</Chip> },
          { head: "Size", as: "num", cell: (segment) => bytes(segment.bytes) },
          { head: "Current since", as: "main", cell: (segment) => <When at={segment.opened_at} /> },
        ]} />
      </section>}
    </>}
  </>;
}

function Relays({ now }: { now: ShownOutbox }) {
  const silent = (now.relays ?? []).filter((name) => !(now.reports ?? []).some((process) => process.relay === name));
  return <>
    <Rows caption="Live relays" rows={now.reports ?? []} keyOf={(process) => process.relay} empty={silent.length > 0 ? "None that says anything." : "No relay runs."} columns={[
      { head: "Relay", as: "wide", cell: (process) => <span class="mono"><Said text={process.relay} most={80} /></span> },
      { head: "Version", as: "fit", cell: (process) => <Said text={process.version} most={30} /> },
      { head: "Host", as: "fit", cell: (process) => <Said text={process.host} most={60} /> },
      { head: "Started", as: "fit", cell: (process) => <When at={process.started_at} /> },
      { head: "Seen", as: "fit", cell: (process) => <When at={process.seen_at} /> },
      { head: "Says", as: "main", cell: (process) => <Says process={process} /> },
    ]} />
    {silent.length > 0 && <p class="quiet">{plural(silent.length, "relay")} of an older version {silent.length === 1 ? "says" : "say"} nothing: <Said text={silent.join(", ")} /></p>}
  </>;
}

function Says({ process: { said } }: { process: RelayProcess }) {
  if (said.kind !== "known") return <Chip tone="quiet">newer</Chip>;
  return <div class="says">
    {said.report.stalled != null && <p><Chip tone="bad">stalled</Chip> <LongText text={said.report.stalled} /></p>}
    {said.report.sinks.map((sink) => <p key={sink.sink}><b><Said text={sink.sink} most={40} /></b>: {plural(sink.lanes, "lane")}
      {sink.pulse != null && <span class="quiet">, {rate(sink.pulse.delivered_per_s)}, p50 {millis(sink.pulse.p50_ms)}, p99 {millis(sink.pulse.p99_ms)}</span>}
      {sink.out_of_reach != null && <> <Chip tone="bad" icon="warn">out of reach</Chip> <Code text={sink.out_of_reach.code} /> since <When at={sink.out_of_reach.since} /></>}
      {(sink.destinations ?? []).slice(0, 5).map((at) => <span key={at.destination}> <Chip tone="warn">out of reach</Chip> <Said text={at.destination} most={60} /> <Code text={at.code} /></span>)}
      {(sink.destinations ?? []).length > 5 || (sink.more_destinations ?? 0) > 0 ? <span class="quiet"> and {number((sink.destinations ?? []).length - Math.min(5, (sink.destinations ?? []).length) + (sink.more_destinations ?? 0))} more</span> : null}
    </p>)}
  </div>;
}

function Lanes({ sink, now }: { sink: SinkStatus; now: ShownOutbox }) {
  return <section class="panel"><div class="panel-head"><h2>Lanes of <Said text={sink.sink} most={60} />{sink.retired && <span class="quiet"> (left the configuration)</span>}</h2>
    <Act small why={whyNoAct("admin", "rewind")} onPress={() => askForRewind(now.outbox, sink)} label={`Rewind sink ${sink.sink}`}>Rewind…</Act></div>
    <Rows caption={`Lanes of ${sink.sink}`} rows={sink.lanes} keyOf={(lane) => String(lane.lane)} empty="No lanes: no relay has run for it." columns={[
      { head: "Lane", as: "num", cell: (lane) => number(lane.lane) },
      { head: "Owner", as: "main", cell: (lane) => <Owner lane={lane} /> },
      { head: "Epoch", as: "num", cell: (lane) => number(lane.epoch) },
      { head: "Lease", as: "num", cell: (lane) => lane.lease_ms == null ? "–" : lane.lease_ms < 0 ? <span class="tone-warn">ended {span(-lane.lease_ms / 1_000)} ago</span> : span(lane.lease_ms / 1_000) },
      { head: "Position", as: "num", cell: (lane) => number(lane.position) },
      { head: "Settled", as: "num", cell: (lane) => lane.settled_seconds_ago == null ? "–" : `${span(lane.settled_seconds_ago)} ago` },
      { head: "Deaths here", as: "num", cell: (lane) => lane.unclean === 0 ? "0" : <span class="tone-warn">{number(lane.unclean)}</span> },
    ]} />
  </section>;
}

function Owner({ lane }: { lane: LaneStatus }) {
  return <>{lane.owner == null ? <Chip tone="warn">no owner</Chip> : <span class="mono"><Said text={lane.owner} most={80} /></span>}
    {lane.catching_up && <> <Chip tone="busy">catching up</Chip></>}</>;
}
