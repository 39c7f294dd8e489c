// Deferred: what waits and for what; whoever may, lets it be tried now.

import { askForJob } from "../acts/job-dialog.tsx";
import { seesKeys, whyNoAct } from "../acts/rights.ts";
import { type DeferredFilter, outLoud } from "../api/plan.ts";
import { path, query } from "../api/request.ts";
import type { DeferredCause, DeferredEvent, DeferredPage as DeferredAnswer } from "../api/shapes.ts";
import { deferredCounts, lacks, outbox } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { FilterBar, PickFilter, TextFilter } from "../parts/filter-bar.tsx";
import { useLook, usePages } from "../parts/look.ts";
import { SEVERAL_SINKS, ofOneSink } from "../parts/picked.ts";
import { LackNote, ProblemNote } from "../parts/problem-note.tsx";
import { MoreRows, Rows } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { useSelection } from "../parts/selection.ts";
import { toast } from "../parts/toast.tsx";
import { here, link } from "../place/here.ts";
import { number, plural } from "../show/number.ts";
import { attemptsColumn, bigCount, dueColumn, errorColumn, keyColumn, oldestColumn, reasonColumn } from "./columns.tsx";
import { causeFilter, whyTooWide } from "./deferred-cause.ts";
import { PageHead } from "./page-head.tsx";
import { REASONS, Reason } from "./reasons.tsx";

const NAMES = ["sink", "destination", "topic", "key", "reason", "code"] as const;

export function filterOf(filters: Readonly<Record<string, string>>): DeferredFilter {
  return Object.fromEntries(NAMES.flatMap((name) => (filters[name] === undefined ? [] : [[name, filters[name]]])));
}

function ofCause(cause: DeferredCause): DeferredFilter {
  return { ...filterOf(here.peek().filters), ...causeFilter(cause) };
}

export function DeferredPage() {
  const lack = lacks.value.get("deferred");
  return lack === undefined ? <Deferred /> : <><PageHead title="Deferred" /><LackNote why={lack} /></>;
}

function Deferred() {
  const place = here.value;
  const wanted = filterOf(place.filters);
  const isFiltered = Object.keys(wanted).length > 0;
  const beat = deferredCounts.value;
  const base = path`outboxes/${place.outbox}/deferred`;
  const causes = useLook<{ causes: DeferredCause[] }>(`${base}/causes${query(wanted)}`, beat);
  const list = usePages<DeferredAnswer, DeferredEvent>(`${base}${query(wanted)}`, (page) => page.deferred, beat);
  const keyOf = (event: DeferredEvent): string => `${event.sink}/${event.seq}`;
  const selection = useSelection(query(wanted), list, keyOf);
  const picked = selection.value.size;
  const why = whyNoAct("operate", "jobs") ?? (list.rows.length === 0 ? "Nothing waits." : null);
  const retry = (): void => {
    const now = selection.peek();
    const filter: DeferredFilter | null = now.size === 0 ? outLoud(wanted) : ofOneSink(now);
    if (filter === null) return toast(SEVERAL_SINKS, "bad");
    const about = now.size > 0 ? plural(now.size, "selected event") : isFiltered ? "all events that match" : "all deferred events";
    askForJob({ outbox: place.outbox, plan: { kind: "deferred.retry", filter }, about, onBegun: () => { selection.value = new Map(); } });
  };
  const total = (causes.data?.causes ?? []).reduce((sum, cause) => sum + cause.count, 0);
  return <>
    <PageHead title="Deferred" about={causes.data === null ? "What waits: for a retry, its time, or an earlier event of its key." : total === 0 ? "Nothing waits." : `${plural(total, "event")} ${total === 1 ? "waits" : "wait"}, for ${plural(causes.data.causes.length, "cause")}.`}>
      <Act kind="primary" act="replay" onPress={retry} why={why}>Retry {picked > 0 ? `${number(picked)} selected` : isFiltered ? "all that match" : "all"} now…</Act>
    </PageHead>
    <FilterBar names={NAMES}>
      <PickFilter name="sink" label="Sink" all={(outbox.value?.sinks ?? []).map((sink) => sink.sink)} />
      <PickFilter name="reason" label="Waits for" all={REASONS} />
      <TextFilter name="destination" label="Destination" />
      <TextFilter name="topic" label="Topic" hint="orders.*" />
      <TextFilter name="code" label="Code" hint="http.status_503" />
      <TextFilter name="key" label="Key" why={seesKeys() ? null : "Your token does not see keys."} />
    </FilterBar>
    {causes.problem && <ProblemNote problem={causes.problem} again={causes.again} />}
    <section class="panel"><h2>Causes</h2>
      <Rows caption="What events wait for, the most frequent first" rows={causes.data?.causes ?? []} isAsking={causes.isAsking && causes.data === null}
        keyOf={(cause) => [cause.sink, cause.reason, cause.destination, cause.error_code].join(" ")} open={(cause) => link("deferred", "", ofCause(cause) as Record<string, string>)}
        empty={isFiltered ? "Nothing matches." : "Nothing waits."} columns={[
          bigCount("Events"),
          { head: "Waits for", as: "fit", cell: (cause) => <a href={link("deferred", "", ofCause(cause) as Record<string, string>)}><Reason reason={cause.reason} /></a> },
          { head: "Where", as: "wide", cell: (cause) => <><Said text={cause.sink} most={40} />{cause.destination !== "" && <> → <Said text={cause.destination} most={80} /></>}</> },
          errorColumn,
          oldestColumn,
          dueColumn,
          { head: "Acts", as: "acts", cell: (cause) => <Act small act="replay" why={whyNoAct("operate", "jobs") ?? whyTooWide(cause, causes.data?.causes ?? [])} label={`Retry ${cause.count} events: ${cause.reason}`}
            onPress={() => askForJob({ outbox: place.outbox, plan: { kind: "deferred.retry", filter: ofCause(cause) }, about: "events of this cause" })}>Retry…</Act> },
        ]} />
    </section>
    <section class="panel"><h2>Events</h2>
      <Rows caption="Deferred events, by sink and number" rows={list.rows} isAsking={list.isAsking} keyOf={keyOf} selection={selection} nameOf={(event) => `event ${event.seq} for ${event.sink}`}
        open={(event) => link("event", String(event.seq), { sink: event.sink })} empty={isFiltered ? "Nothing matches." : "Nothing waits."} columns={[
          { head: "Number", as: "num", cell: (event) => <a href={link("event", String(event.seq), { sink: event.sink })}>{number(event.seq)}</a> },
          { head: "Topic", as: "wide", cell: (event) => <Said text={event.topic} most={80} /> },
          keyColumn,
          { head: "Where", as: "wide", cell: (event) => <><Said text={event.sink} most={40} />{event.destination !== "" && <> → <Said text={event.destination} most={60} /></>}</> },
          reasonColumn,
          errorColumn,
          dueColumn,
          attemptsColumn,
        ]} />
      <MoreRows pages={list} what="events" />
    </section>
  </>;
}
