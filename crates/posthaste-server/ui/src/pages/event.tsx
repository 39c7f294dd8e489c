// One event: its life with each sink, what it carries, and what of its key came before and after it.

import { askForJob } from "../acts/job-dialog.tsx";
import { ReplayTo } from "../acts/replay-to.tsx";
import { outboxFlag, whyNoAct, whyNot } from "../acts/rights.ts";
import { path } from "../api/request.ts";
import type { ShownLife, SinkLife } from "../api/shapes.ts";
import { command } from "../cli/command.ts";
import { deadCounts, deferredCounts, jobs } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { Chip, type Tone } from "../parts/chip.tsx";
import { copyText } from "../parts/command-line.tsx";
import { acted } from "../parts/dialog.tsx";
import { useLook } from "../parts/look.ts";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Rows, Waiting } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { here, link } from "../place/here.ts";
import { bytes, number, plural } from "../show/number.ts";
import { own } from "../show/text.ts";
import { EventHeaders, EventPayload } from "./event-contents.tsx";
import { SameKey } from "./event-key.tsx";
import { Timeline } from "./event-timeline.tsx";
import { PageHead } from "./page-head.tsx";

const PROGRESS: Readonly<Record<SinkLife["progress"], readonly [words: string, tone: Tone]>> = {
  ahead: ["not read yet", "quiet"],
  deferred: ["deferred", "warn"],
  dead: ["dead", "bad"],
  passed: ["delivered", "ok"],
  "before-start": ["from before the sink began", "quiet"],
  "not-routed": ["no route", "quiet"],
};

export function EventPage() {
  const place = here.value;
  const job = jobs.value?.jobs[0];
  const beat = [deadCounts.value, deferredCounts.value, job?.job, job?.state, job?.done, acted.value].join();
  const look = useLook<ShownLife>(place.of === "" ? null : path`outboxes/${place.outbox}/events/${place.of}`, beat);
  const life = look.data;
  if (place.of === "") return <p class="empty">Which event? Give its id or its number in the address.</p>;
  return <>
    {life === null && <PageHead title="Event" about={<Said text={place.of} />} />}
    {look.problem && <ProblemNote problem={look.problem} again={look.again} />}
    {life === null ? look.isAsking && <Waiting /> : <Shown life={life} outbox={place.outbox} />}
  </>;
}

function Shown({ life, outbox }: { life: ShownLife; outbox: string }) {
  const { event } = life;
  const show = command(["events", "show", event.seq], [["outbox", outboxFlag(outbox)]]);
  return <>
    <PageHead title={<>Event <span class="num">{number(event.seq)}</span> <span class="quiet title-topic"><Said text={event.topic} most={120} /></span></>}
      about={<><span class="mono"><Said text={event.id} /></span>{!life.in_log && " · the log does not hold it any more; this is a copy"}</>}>
      <Act onPress={() => void copyText(event.id, "Id")}>Copy id</Act>
      <Act onPress={() => void copyText(show, "Command")}>Copy command</Act>
      <ReplayTo why={life.in_log ? null : "The log does not hold it any more."} onPick={(sink) => askForJob({ outbox, plan: { kind: "events.replay", sink, filter: { from_seq: event.seq, to_seq: event.seq } }, about: `event ${event.seq} to ${sink}` })} />
    </PageHead>
    <section class="panel"><dl class="facts pad">
      <div><dt>Topic</dt><dd><a href={link("events", "", { topic: event.topic })}><Said text={event.topic} /></a></dd></div>
      <div><dt>Key</dt><dd>{event.key == null ? <span class="quiet">none</span> : event.key === "(hidden)" ? event.key : <a href={link("events", "", { key: event.key })}><Said text={event.key} /></a>}</dd></div>
      <div><dt>Appended</dt><dd><When at={event.appended_at} /></dd></div>
      {event.deliver_at != null && <div><dt>Not before</dt><dd><When at={event.deliver_at} /></dd></div>}
      <div><dt>Payload</dt><dd>{event.payload_bytes == null ? "tombstone" : bytes(event.payload_bytes)}{event.content_type != null && <span class="quiet"> <Said text={event.content_type} most={80} /></span>}</dd></div>
    </dl></section>
    <section class="panel"><h2>With each sink</h2><Sinks life={life} outbox={outbox} /></section>
    <div class="columns">
      <section class="panel"><h2>Timeline</h2><Timeline life={life} outbox={outbox} /></section>
      <div class="stack">
        <EventPayload life={life} outbox={outbox} />
        <EventHeaders headers={event.headers} />
      </div>
    </div>
    <SameKey event={event} outbox={outbox} />
  </>;
}

function Sinks({ life, outbox }: { life: ShownLife; outbox: string }) {
  const dead = (sink: SinkLife, kind: "dead.replay" | "dead.discard"): void => askForJob({
    outbox, plan: { kind, filter: { ids: [life.event.id], sink: sink.sink } }, about: `the letter of event ${life.event.seq} at ${sink.sink}`,
  });
  const retry = (sink: SinkLife): void => askForJob({
    outbox, plan: { kind: "deferred.retry", filter: { ids: [life.event.id], sink: sink.sink } }, about: `event ${life.event.seq} for ${sink.sink}`,
  });
  return <Rows caption="The event with each sink" rows={life.sinks} keyOf={(sink) => sink.sink} empty="No sink takes it." columns={[
    { head: "Sink", as: "fit", cell: (sink) => <Said text={sink.sink} most={60} /> },
    { head: "How far", as: "fit", cell: (sink) => { const [words, tone] = own(PROGRESS, sink.progress) ?? [sink.progress, "quiet" as const]; return <Chip tone={tone}>{words}</Chip>; } },
    { head: "What is known", as: "main", cell: (sink) => <SinkWords sink={sink} /> },
    { head: "Acts", as: "acts", cell: (sink) => sink.dead != null
      ? <><Act small kind="primary" act="replay" why={whyNoAct("operate", "jobs")} onPress={() => dead(sink, "dead.replay")} label={`Replay at ${sink.sink}`}>Replay…</Act>
        <Act small kind="danger" act="discard" why={whyNot("admin") ?? whyNoAct("admin", "jobs")} onPress={() => dead(sink, "dead.discard")} label={`Discard at ${sink.sink}`}>Discard…</Act></>
      : sink.waiting != null ? <Act small act="replay" why={whyNoAct("operate", "jobs")} onPress={() => retry(sink)} label={`Retry for ${sink.sink}`}>Retry now…</Act> : null },
  ]} />;
}

function SinkWords({ sink }: { sink: SinkLife }) {
  const held = sink.holds_back > 0 && <Chip tone="warn">{plural(sink.holds_back, "later event")} of its key {sink.holds_back === 1 ? "waits" : "wait"} for it</Chip>;
  if (sink.dead != null) return <><code class="code"><Said text={sink.dead.error_code} most={80} /></code> <Said text={sink.dead.error} most={300} /> {held}
    {sink.dead.fingerprint != null && <> <a href={link("dead", "", { sink: sink.sink, fingerprint: sink.dead.fingerprint })}>all of this cause</a></>}</>;
  if (sink.waiting != null) {
    const { waiting } = sink;
    return <>{sink.behind != null ? <>behind <a href={link("event", String(sink.behind))}>number {number(sink.behind)}</a> of its key</> : <>{waiting.reason}{waiting.due_at != null && <>, due <When at={waiting.due_at} /></>}</>}
      {waiting.destination !== "" && <>, to <Said text={waiting.destination} most={80} /></>}{waiting.last_error != null && <>: <Said text={waiting.last_error} most={200} /></>} {held}</>;
  }
  if (sink.passed != null) return <>settled <When at={sink.passed.settled_at} /> in lane {sink.passed.lane}</>;
  return <span class="quiet">{sink.progress === "ahead" ? `its lane is at ${number(sink.position)}` : sink.progress === "passed" ? "the receipt is not kept any more" : "–"}</span>;
}
