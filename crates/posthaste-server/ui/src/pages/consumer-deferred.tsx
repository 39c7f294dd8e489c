// What a consumer set aside: for what, and which messages.

import { askForJob } from "../acts/job-dialog.tsx";
import { whyNoActOn } from "../acts/rights.ts";
import { type DeferredFilter, outLoud } from "../api/plan.ts";
import { path, query } from "../api/request.ts";
import type { DeferredMessage, Maybe, MessageCause, ShownConsumer } from "../api/shapes.ts";
import { Act } from "../parts/act.tsx";
import { useLook, usePages } from "../parts/look.ts";
import { ProblemNote } from "../parts/problem-note.tsx";
import { MoreRows, Rows } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { useSelection } from "../parts/selection.ts";
import { here, link } from "../place/here.ts";
import { number, plural } from "../show/number.ts";
import { attemptsColumn, bigCount, dueColumn, errorColumn, fromColumn, keyColumn, oldestColumn, reasonColumn } from "./columns.tsx";
import { causeFilter, whyTooWide } from "./deferred-cause.ts";
import { Reason } from "./reasons.tsx";

export function ConsumerDeferred({ consumer }: { consumer: ShownConsumer }) {
  const { reason, code } = here.value.filters;
  const wanted: DeferredFilter = { ...(reason === undefined ? {} : { reason }), ...(code === undefined ? {} : { code }) };
  const base = path`consumers/${consumer.consumer}/deferred`;
  const beat = consumer.deferred.count;
  const causes = useLook<{ causes: MessageCause[] }>(`${base}/causes`, beat);
  const list = usePages<{ deferred: DeferredMessage[]; next?: Maybe<string> }, DeferredMessage>(`${base}${query(wanted)}`, (page) => page.deferred, beat);
  const selection = useSelection(query(wanted), list, (one) => String(one.seq));
  const why = whyNoActOn("operate", consumer.outbox);
  const retry = (filter: DeferredFilter, about: string): void =>
    askForJob({ outbox: consumer.outbox, plan: { kind: "consumer.deferred_retry", consumer: consumer.consumer, filter }, about, onBegun: () => { selection.value = new Map(); } });
  const isFiltered = Object.keys(wanted).length > 0;
  const picked = selection.value.size;
  const all = (): void => {
    const now = [...selection.peek().values()];
    if (now.length > 0) retry({ ids: now.map(({ id }) => id) }, plural(now.length, "selected message"));
    else retry(outLoud(wanted), isFiltered ? "all messages that match" : `all messages of ${consumer.consumer}`);
  };
  const to = (cause: MessageCause): string => link("consumers", consumer.consumer, { view: "deferred", ...(causeFilter(cause) as Record<string, string>) });
  return <>
    <section class="panel"><h2>Causes</h2>
      {causes.problem && <ProblemNote problem={causes.problem} again={causes.again} />}
      <Rows caption="What its messages wait for, the most frequent first" rows={causes.data?.causes ?? []} isAsking={causes.data === null && causes.isAsking}
        keyOf={(cause) => `${cause.reason} ${cause.error_code ?? ""}`} open={to} empty="Nothing waits." columns={[
          bigCount("Messages"),
          { head: "Waits for", as: "fit", cell: (cause) => <a href={to(cause)}><Reason reason={cause.reason} /></a> },
          errorColumn,
          oldestColumn,
          dueColumn,
          { head: "Acts", as: "acts", cell: (cause) => <Act small act="replay" why={why ?? whyTooWide(cause, causes.data?.causes ?? [])} onPress={() => retry(causeFilter(cause), "messages of this cause")} label={`Retry ${cause.count} messages: ${cause.reason}`}>Retry…</Act> },
        ]} />
    </section>
    <section class="panel"><div class="panel-head"><h2>Messages</h2>
      <span class="page-acts"><Act small act="replay" why={why ?? (list.rows.length === 0 ? "Nothing waits." : null)} onPress={all}>
        Retry {picked > 0 ? `${number(picked)} selected` : isFiltered ? "all that match" : "all"} now…</Act></span></div>
      <Rows caption="Messages that it set aside, by number" rows={list.rows} isAsking={list.isAsking} keyOf={(one) => String(one.seq)} selection={selection} nameOf={(one) => `message ${one.id}`} empty="Nothing waits." columns={[
        { head: "Message", as: "wide", cell: (one) => <span class="mono"><Said text={one.id} most={60} /></span> },
        fromColumn,
        keyColumn,
        reasonColumn,
        errorColumn,
        dueColumn,
        attemptsColumn,
      ]} />
      <MoreRows pages={list} what="messages" />
    </section>
  </>;
}
