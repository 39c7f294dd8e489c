// A consumer's dead letters, by cause; and one letter in full.

import { askForJob } from "../acts/job-dialog.tsx";
import { whyNoActOn } from "../acts/rights.ts";
import { type DeadFilter, outLoud } from "../api/plan.ts";
import { path, query } from "../api/request.ts";
import type { ConsumerLetter, LetterCause, Maybe, ShownConsumer } from "../api/shapes.ts";
import { jobs } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { useLook, usePages } from "../parts/look.ts";
import { ProblemNote } from "../parts/problem-note.tsx";
import { MoreRows, Rows } from "../parts/rows.tsx";
import { Code, LongText, Said } from "../parts/said.tsx";
import { useSelection } from "../parts/selection.ts";
import { When } from "../parts/when.tsx";
import { here, link } from "../place/here.ts";
import { number, plural } from "../show/number.ts";
import { fromBase16 } from "../show/text.ts";
import { attemptsColumn, bigCount, diedColumn, errorColumn, firstColumn, fromColumn, keyColumn, lastColumn } from "./columns.tsx";
import { EventHeaders, Payload } from "./event-contents.tsx";

export function ConsumerDead({ consumer }: { consumer: ShownConsumer }) {
  const { fingerprint, letter } = here.value.filters;
  const wanted: DeadFilter = fingerprint === undefined ? {} : { fingerprint };
  const base = path`consumers/${consumer.consumer}/dead`;
  // What was replayed and died again has a new letter, and their number is what it was.
  const job = jobs.value?.jobs[0];
  const beat = [consumer.dead.count, consumer.deferred.count, job?.job, job?.state, job?.done].join();
  const causes = useLook<{ causes: LetterCause[] }>(`${base}/causes`, beat);
  const list = usePages<{ dead: ConsumerLetter[]; next?: Maybe<string> }, ConsumerLetter>(`${base}${query(wanted)}`, (page) => page.dead, beat);
  const selection = useSelection(query(wanted), list, (one) => one.letter);
  const whyReplay = whyNoActOn("operate", consumer.outbox);
  const whyDiscard = whyNoActOn("admin", consumer.outbox);
  const act = (kind: "consumer.replay" | "consumer.discard", filter: DeadFilter, about: string): void =>
    askForJob({ outbox: consumer.outbox, plan: { kind, consumer: consumer.consumer, filter }, about, onBegun: () => { selection.value = new Map(); } });
  const picked = selection.value.size;
  const all = (kind: "consumer.replay" | "consumer.discard"): void => {
    const ids = [...selection.peek().keys()];
    if (ids.length > 0) act(kind, { ids }, plural(ids.length, "selected letter"));
    else act(kind, outLoud(wanted), fingerprint === undefined ? `all letters of ${consumer.consumer}` : "letters of this cause");
  };
  const what = picked > 0 ? `${number(picked)} selected` : fingerprint === undefined ? "all" : "this cause";
  const none = list.rows.length === 0 ? "There is nothing to act on." : null;
  const to = (more: Record<string, string>): string => link("consumers", consumer.consumer, { view: "dead", ...more });
  if (letter !== undefined) return <OneLetter consumer={consumer} letter={letter} />;
  return <>
    <section class="panel"><div class="panel-head"><h2>Causes</h2></div>
      {causes.problem && <ProblemNote problem={causes.problem} again={causes.again} />}
      <Rows caption="Causes of its dead letters, the most frequent first" rows={(causes.data?.causes ?? []).filter((cause) => fingerprint === undefined || cause.fingerprint === fingerprint)} isAsking={causes.data === null && causes.isAsking}
        keyOf={(cause) => cause.fingerprint} open={(cause) => to({ fingerprint: cause.fingerprint })} empty="No causes: nothing is dead." columns={[
          bigCount("Letters"),
          { head: "Cause", as: "main", cell: (cause) => <div class="cause"><a href={to({ fingerprint: cause.fingerprint })}><Code text={cause.error_code} /></a><div><Said text={cause.error} most={240} /></div></div> },
          { head: "How", as: "fit", cell: (cause) => cause.disposition },
          firstColumn,
          lastColumn,
          { head: "Acts", as: "acts", cell: (cause) => <>
            <Act small act="replay" why={whyReplay} onPress={() => act("consumer.replay", { fingerprint: cause.fingerprint }, "letters of this cause")} label={`Replay ${cause.count} letters: ${cause.error_code}`}>Replay…</Act>
            <Act small kind="quiet" act="discard" why={whyDiscard} onPress={() => act("consumer.discard", { fingerprint: cause.fingerprint }, "letters of this cause")} label={`Discard ${cause.count} letters: ${cause.error_code}`}>Discard…</Act></> },
        ]} />
      {fingerprint !== undefined && <p><a href={to({})}>All causes</a></p>}
    </section>
    <section class="panel"><div class="panel-head"><h2>Letters</h2><span class="page-acts">
      <Act small act="replay" why={whyReplay ?? none} onPress={() => all("consumer.replay")}>Replay {what}…</Act>
      <Act small kind="danger" act="discard" why={whyDiscard ?? none} onPress={() => all("consumer.discard")}>Discard {what}…</Act></span></div>
      <Rows caption="Its dead letters, newest first" rows={list.rows} isAsking={list.isAsking} keyOf={(one) => one.letter} selection={selection} nameOf={(one) => `the letter of ${one.id}`}
        open={(one) => to({ letter: one.letter })} empty="No dead letters." columns={[
          diedColumn,
          { head: "Message", as: "wide", cell: (one) => <a href={to({ letter: one.letter })}><Said text={one.id} most={60} /></a> },
          fromColumn,
          keyColumn,
          errorColumn,
          attemptsColumn,
        ]} />
      <MoreRows pages={list} what="letters" />
    </section>
  </>;
}

type Whole = ConsumerLetter & { payload?: Maybe<string>; payload_base16?: string };

/** What is no text comes in hex. */
const bytesOf = ({ payload, payload_base16: hex }: Whole): Uint8Array<ArrayBuffer> => (payload != null ? new TextEncoder().encode(payload) : fromBase16(hex ?? ""));

function OneLetter({ consumer, letter }: { consumer: ShownConsumer; letter: string }) {
  const look = useLook<{ dead: Whole[] }>(path`consumers/${consumer.consumer}/dead/${letter}`, consumer.dead.count);
  const back = link("consumers", consumer.consumer, { view: "dead" });
  const act = (kind: "consumer.replay" | "consumer.discard"): void =>
    askForJob({ outbox: consumer.outbox, plan: { kind, consumer: consumer.consumer, filter: { ids: [letter] } }, about: "this letter" });
  return <>
    <p><a href={back}>All its letters</a></p>
    {look.problem && <ProblemNote problem={look.problem} />}
    {(look.data?.dead ?? []).map((one) => <div key={one.letter} class="stack">
      <section class="panel"><div class="panel-head"><h2>Letter of <Said text={one.id} most={80} /></h2><span class="page-acts">
        <Act small kind="primary" act="replay" why={whyNoActOn("operate", consumer.outbox)} onPress={() => act("consumer.replay")}>Replay…</Act>
        <Act small kind="danger" act="discard" why={whyNoActOn("admin", consumer.outbox)} onPress={() => act("consumer.discard")}>Discard…</Act></span></div>
        <p><Code text={one.error_code} /> <LongText text={one.error} /></p>
        <dl class="facts pad">
          <div><dt>From</dt><dd><Said text={one.topic} />/{one.partition} at {number(one.position)}</dd></div>
          <div><dt>Key</dt><dd>{one.key == null ? "none" : <Said text={one.key} />}</dd></div>
          <div><dt>Published</dt><dd><When at={one.published_at} /></dd></div>
          <div><dt>Died</dt><dd><When at={one.dead_at} /></dd></div>
          <div><dt>Attempts</dt><dd>{number(one.attempts)}, {plural(one.replays, "replay")} before</dd></div>
          <div><dt>How</dt><dd>{one.disposition}{one.holds_key && ", and it holds its key"}</dd></div>
        </dl>
        {one.stack != null && <details><summary>Where it happened</summary><LongText text={one.stack} most={4_000} block /></details>}
      </section>
      <Payload size={one.payload_bytes} text={one.payload} load={() => Promise.resolve(bytesOf(one))} file={`letter-${one.letter}.payload`} />
      <EventHeaders headers={one.headers} />
    </div>)}
  </>;
}
