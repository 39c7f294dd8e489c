// Dead letters: causes first, because ten thousand letters are one story; then the letters.

import { askForJob } from "../acts/job-dialog.tsx";
import { seesKeys, whyNoAct, whyNot } from "../acts/rights.ts";
import { type DeadFilter, outLoud } from "../api/plan.ts";
import { path, query } from "../api/request.ts";
import type { Dead, DeadCauses, DeadLetter } from "../api/shapes.ts";
import { deadCounts, outbox } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { FilterBar, PickFilter, TextFilter, TimeFilter } from "../parts/filter-bar.tsx";
import { useLook, usePages } from "../parts/look.ts";
import { SEVERAL_SINKS, ofOneSink } from "../parts/picked.ts";
import { ProblemNote } from "../parts/problem-note.tsx";
import { MoreRows, Rows, Waiting } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { useSelection } from "../parts/selection.ts";
import { toast } from "../parts/toast.tsx";
import { here, link } from "../place/here.ts";
import { number, plural } from "../show/number.ts";
import { diedColumn, errorColumn, keyColumn } from "./columns.tsx";
import { CausesTable, OneCause } from "./dead-causes.tsx";
import { PageHead } from "./page-head.tsx";

const NAMES = ["sink", "topic", "key", "code", "fingerprint", "since", "until"] as const;

/** The filter of the address, as the API takes it. */
export function deadFilter(filters: Readonly<Record<string, string>>): DeadFilter {
  return Object.fromEntries(NAMES.flatMap((name) => (filters[name] === undefined ? [] : [[name, filters[name]]])));
}

export function DeadPage() {
  const place = here.value;
  const wanted = deadFilter(place.filters);
  const isFiltered = Object.keys(wanted).length > 0;
  const beat = deadCounts.value;
  const base = path`outboxes/${place.outbox}/dead`;
  const causes = useLook<DeadCauses>(`${base}/causes${query({ ...wanted })}`, beat);
  const letters = usePages<Dead, DeadLetter>(`${base}${query({ ...wanted })}`, (page) => page.dead, beat);
  const selection = useSelection(query(wanted), letters, (letter) => letter.cursor);

  const one = wanted.fingerprint === undefined ? null : causes.data?.causes[0] ?? null;
  const total = (causes.data?.causes ?? []).reduce((sum, cause) => sum + cause.count, 0);
  const act = (kind: "dead.replay" | "dead.discard"): void => {
    const now = selection.peek();
    const filter: DeadFilter | null = now.size === 0 ? outLoud(wanted) : ofOneSink(now);
    if (filter === null) return toast(SEVERAL_SINKS, "bad");
    const about = now.size > 0 ? plural(now.size, "selected letter") : wanted.fingerprint !== undefined ? "letters of this cause" : isFiltered ? "all letters that match" : "all dead letters";
    askForJob({ outbox: place.outbox, plan: { kind, filter }, about, onBegun: () => { selection.value = new Map(); } });
  };
  const picked = selection.value.size;
  const whyReplay = whyNoAct("operate", "jobs") ?? (letters.rows.length === 0 ? "There is nothing to replay." : null);
  const whyDiscard = whyNoAct("admin", "jobs") ?? (letters.rows.length === 0 ? "There is nothing to discard." : null);
  const what = picked > 0 ? `${number(picked)} selected` : wanted.fingerprint !== undefined ? "this cause" : isFiltered ? "all that match" : "all";

  return <>
    <PageHead title="Dead letters" about={causes.data === null ? "Given up after their last attempt." : total === 0 ? "Nothing was given up." : `${number(total)} in ${plural(causes.data.causes.length, "cause")}${causes.data.looked == null ? "" : `, of the newest ${number(causes.data.looked)} rows`}.`}>
      <Act kind="primary" act="replay" onPress={() => act("dead.replay")} why={whyReplay}>Replay {what}…</Act>
      <Act kind="danger" act="discard" onPress={() => act("dead.discard")} why={whyDiscard}>Discard {what}…</Act>
    </PageHead>
    <DeadFilters />
    {causes.problem && <ProblemNote problem={causes.problem} again={causes.again} />}
    {wanted.fingerprint !== undefined
      ? one !== null ? <OneCause cause={one} /> : causes.isAsking && <Waiting />
      : <section class="panel"><h2>Causes</h2><CausesTable found={causes.data} isAsking={causes.isAsking} isFiltered={isFiltered} /></section>}
    <section class="panel">
      <h2>{wanted.fingerprint === undefined ? "Letters" : "Letters of this cause"}</h2>
      <Rows caption="Dead letters, newest first" rows={letters.rows} isAsking={letters.isAsking} keyOf={(letter) => letter.cursor}
        nameOf={(letter) => `the letter of event ${letter.seq}`} selection={selection}
        open={(letter) => link("event", letter.id, { sink: letter.sink })}
        empty={isFiltered ? "No dead letter matches." : "No dead letters: every event was delivered, or waits."} columns={[
          diedColumn,
          { head: "Topic", as: "wide", cell: (letter) => <a href={link("event", letter.id, { sink: letter.sink })}><Said text={letter.topic} most={80} /></a> },
          keyColumn,
          { head: "Sink", as: "fit", cell: (letter) => <Said text={letter.sink} most={40} /> },
          errorColumn,
          { head: "Attempts", as: "num", cell: (letter) => <>{number(letter.attempts)}{letter.replays > 0 && <span class="quiet" title={plural(letter.replays, "replay")}> +{number(letter.replays)}r</span>}</> },
        ]} />
      <MoreRows pages={letters} what="letters" />
    </section>
  </>;
}

function DeadFilters() {
  const sinks = (outbox.value?.sinks ?? []).map((sink) => sink.sink);
  return <FilterBar names={NAMES}>
    <PickFilter name="sink" label="Sink" all={sinks} />
    <TextFilter name="topic" label="Topic" hint="orders.*" />
    <TextFilter name="code" label="Code" hint="http.status_422" />
    <TextFilter name="key" label="Key" why={seesKeys() ? null : "Your token does not see keys."} />
    <TimeFilter name="since" label="Since" />
    <TimeFilter name="until" label="Until" />
    {here.value.filters["fingerprint"] !== undefined && <TextFilter name="fingerprint" label="Cause" />}
  </FilterBar>;
}

export const whyNoReplay = (): string | null => whyNoAct("operate", "jobs");
export const whyNoDiscard = (): string | null => whyNot("admin") ?? whyNoAct("admin", "jobs");
