// How an outbox is, in one sentence with its cause; what else is wrong stands below it.

import type { ShownOutbox, Trouble } from "../api/shapes.ts";
import { Icon, type IconName } from "../parts/icon.tsx";
import { LongText, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { link } from "../place/here.ts";
import { number, plural } from "../show/number.ts";
import { withTimes } from "../show/text.ts";

/** Where one sees what a problem is about. */
function placeOf(problem: Trouble): { to: string; words: string } | null {
  const sink: Readonly<Record<string, string>> = problem.sink == null ? {} : { sink: problem.sink };
  switch (problem.kind) {
    case "destination_out_of_reach":
      return { to: link("deferred", "", problem.destination == null ? sink : { ...sink, destination: problem.destination }), words: "See what waits" };
    case "sink_out_of_reach":
    case "paused": return { to: link("deferred", "", sink), words: "See what waits" };
    case "no_relay":
    case "no_owner":
    case "stalled": return { to: link("lanes"), words: "See lanes and relays" };
    default: return null;
  }
}

/** A pause was meant; everything else was not. */
const isMeant = (problem: Trouble): boolean => problem.kind === "paused";

/** What the diagnosis says, its times as the switch at the top wants them. */
export function Sentence({ text }: { text: string }) {
  return <>{withTimes(text).map((part, index) => (index % 2 === 1 ? <When key={index} at={part} /> : <Said key={index} text={part} most={300} />))}</>;
}

export function Health({ now }: { now: ShownOutbox }) {
  const problems = [...(now.problems ?? [])].sort((one, two) => Number(isMeant(one)) - Number(isMeant(two)));
  const [first, ...others] = problems;
  const sinks = now.sinks ?? [];
  const dead = sinks.reduce((sum, sink) => sum + sink.dead.count, 0);
  const waiting = sinks.filter((sink) => !sink.retired).reduce((sum, sink) => sum + sink.backlog.count + sink.deferred.count, 0);
  const tone = first === undefined ? (dead > 0 ? "warn" : "ok") : isMeant(first) ? "paused" : "bad";
  const icons: Readonly<Record<string, IconName>> = { ok: "ok", warn: "dead", paused: "pause", bad: "warn" };
  const word = { ok: "Well", warn: "Attention", paused: "Paused", bad: "Trouble" }[tone];
  const letters = dead > 0 && <><a href={link("dead")}>{plural(dead, "dead letter")}</a> {dead === 1 ? "waits" : "wait"} for a decision.</>;
  const place = first === undefined ? null : placeOf(first);
  return <section class={`health health-${tone}`} aria-label="Health" data-health={tone}>
    <div class="health-icon"><Icon name={icons[tone] ?? "ok"} size={18} /></div>
    <div class="health-text">
      <p class="health-sentence"><span class="unseen" role="status">{word}{first && `, ${[first.kind.replaceAll("_", " "), first.sink, first.destination].filter(Boolean).join(" ")}`}: </span>
        {first !== undefined ? <><Sentence text={first.sentence} />{place && <> <a href={place.to}>{place.words}</a></>}</>
          : dead > 0 ? <>Events flow. {letters}</>
            : waiting === 0 ? "All is well: everything that was appended is delivered." : `Events flow: ${number(waiting)} on their way or waiting for their time.`}
      </p>
      {(others.length > 0 || (first !== undefined && dead > 0)) && <ul class="health-more">
        {others.slice(0, 6).map((problem) => {
          const there = placeOf(problem);
          return <li key={problem.sentence}><Sentence text={problem.sentence} />{there && <> <a href={there.to}>{there.words}</a></>}</li>;
        })}
        {others.length > 6 && <li>and {number(others.length - 6)} more</li>}
        {first !== undefined && dead > 0 && <li>{letters}</li>}
      </ul>}
    </div>
  </section>;
}

export function Unreachable({ name, why }: { name: string; why: string }) {
  return <section class="health health-bad" data-health="unreachable" aria-label="Health">
    <div class="health-icon"><Icon name="warn" size={18} /></div>
    <div class="health-text"><p class="health-sentence">The database of <b><bdi>{name}</bdi></b> cannot be reached.</p><p class="quiet"><LongText text={why} /></p></div>
  </section>;
}
