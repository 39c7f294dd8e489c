// Events of the log: a search that says how far it looked, and the newest as they come.

import { useEffect } from "preact/hooks";
import { askForJob } from "../acts/job-dialog.tsx";
import { ReplayTo } from "../acts/replay-to.tsx";
import { seesKeys } from "../acts/rights.ts";
import type { EventFilter } from "../api/plan.ts";
import { path, query } from "../api/request.ts";
import type { Events, LogEvent } from "../api/shapes.ts";
import { TAIL_MAX, beginTail, clearTail, lacks, tail, tailGap, tailSeen } from "../live/picture.ts";
import { linked, wantsTail } from "../live/stream.ts";
import { Act } from "../parts/act.tsx";
import { FilterBar, TextFilter, TimeFilter } from "../parts/filter-bar.tsx";
import { usePages } from "../parts/look.ts";
import { LackNote } from "../parts/problem-note.tsx";
import { type Column, MoreRows, Rows } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { filter, go, here, link } from "../place/here.ts";
import { bytes, number, plural } from "../show/number.ts";
import { keyColumn } from "./columns.tsx";
import { PageHead } from "./page-head.tsx";
import { matches } from "./tail-filter.ts";

const NAMES = ["topic", "key", "since", "until", "from_seq", "to_seq"] as const;

export function EventsPage() {
  const lack = lacks.value.get("events");
  return lack === undefined ? <EventsOfLog /> : <><PageHead title="Events" /><LackNote why={lack} /></>;
}

const digits = (text: string): string | undefined => (/^\d*$/.test(text.trim()) ? text.trim() : undefined);

const COLUMNS: readonly Column<LogEvent>[] = [
  { head: "Number", as: "num", cell: (event) => <a href={link("event", String(event.seq))}>{number(event.seq)}</a> },
  { head: "Appended", as: "fit", cell: (event) => <When at={event.appended_at} /> },
  { head: "Topic", as: "main", cell: (event) => <Said text={event.topic} most={120} /> },
  keyColumn,
  { head: "Id", as: "wide", cell: (event) => <span class="mono quiet id"><Said text={event.id} most={36} /></span> },
  { head: "Payload", as: "num", cell: (event) => event.payload_bytes == null ? <span class="quiet">tombstone</span> : bytes(event.payload_bytes) },
];

function EventsOfLog() {
  const place = here.value;
  const isTail = place.filters["tail"] === "yes";
  const wanted = Object.fromEntries(NAMES.flatMap((name) => (place.filters[name] === undefined ? [] : [[name, place.filters[name] ?? ""]])));
  const jobFilter = (): EventFilter => ({ ...wanted, ...Object.fromEntries(["from_seq", "to_seq"].flatMap((name) => (wanted[name] === undefined ? [] : [[name, Number(wanted[name])]]))) });
  const isFiltered = Object.keys(wanted).length > 0;
  return <>
    <PageHead title="Events" about={isTail ? "New events as they come." : "The log, oldest first."}>
      <FindEvent />
      <button type="button" class="act act-plain" aria-pressed={isTail} onClick={() => filter({ tail: isTail ? "" : "yes" })}>{isTail ? "Back to the log" : "Live tail"}</button>
      <ReplayTo why={isFiltered ? null : "Set a filter first: to send a sink everything again, rewind it."} onPick={(sink) => askForJob({ outbox: place.outbox, plan: { kind: "events.replay", sink, filter: jobFilter() }, about: `events that match to ${sink}` })} />
    </PageHead>
    <FilterBar names={NAMES}>
      <TextFilter name="topic" label="Topic" hint="orders.*" wide />
      <TextFilter name="key" label="Key" why={seesKeys() ? null : "Your token does not see keys."} />
      {!isTail && <>
        <TimeFilter name="since" label="Since" />
        <TimeFilter name="until" label="Until" />
        <TextFilter name="from_seq" label="From number" read={digits} wrong="A whole number." />
        <TextFilter name="to_seq" label="To number" read={digits} wrong="A whole number." />
      </>}
    </FilterBar>
    {isTail ? <Tail topic={wanted["topic"]} ofKey={wanted["key"]} /> : <Search outbox={place.outbox} wanted={wanted} />}
  </>;
}

function FindEvent() {
  const open = (event: Event): void => {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem("event");
    if (field instanceof HTMLInputElement && field.value.trim() !== "") go(link("event", field.value.trim()));
  };
  return <form class="find" role="search" aria-label="One event" onSubmit={open}><label><span class="unseen">Open an event by id or number</span>
    <input class="input" name="event" placeholder="Open an id or number" autocomplete="off" spellcheck={false} /></label></form>;
}

function Search({ outbox, wanted }: { outbox: string; wanted: Record<string, string> }) {
  const list = usePages<Events, LogEvent>(path`outboxes/${outbox}/events` + query(wanted), (page) => page.events);
  const looked = list.last?.looked;
  return <section class="panel">
    <Rows caption="Events, oldest first" rows={list.rows} isAsking={list.isAsking} keyOf={(event) => String(event.seq)} open={(event) => link("event", String(event.seq))}
      empty={looked?.complete === false ? "Nothing in the part that was looked through." : "No event matches."} columns={COLUMNS} />
    <MoreRows pages={list} what="events" />
    {looked && <p class="quiet looked">{looked.complete ? "Looked to the end of the log." : `Looked up to number ${number(looked.to)}. `}
      {!looked.complete && list.rows.length === 0 && <button type="button" class="link" onClick={list.more}>Look further</button>}</p>}
  </section>;
}

function Tail({ topic, ofKey }: { topic: string | undefined; ofKey: string | undefined }) {
  const lack = lacks.value.get("tail");
  useEffect(() => {
    beginTail();
    wantsTail.value = true;
    return () => { wantsTail.value = false; };
  }, []);
  if (lack !== undefined) return <LackNote why={lack} />;
  const rows = tail.value.filter((event) => matches(event, topic, ofKey));
  return <section class="panel">
    <p class="pad quiet tail-head" data-tail={tailSeen.value}>{plural(tailSeen.value, "event")} since this page was opened{tailSeen.value > TAIL_MAX && `; the newest ${number(TAIL_MAX)} are kept`}{tailGap.value && "; some came while the stream was away, and are not here"}.
      <Act small kind="quiet" onPress={clearTail}>Clear</Act></p>
    <Rows caption="New events, newest first" rows={rows} keyOf={(event) => String(event.seq)} open={(event) => link("event", String(event.seq))}
      empty={linked.value === "live" ? "Nothing yet: what is appended from now on is shown here." : "The stream is not open."} columns={COLUMNS} />
  </section>;
}
