// Why letters died: one row for each cause, and one cause in full.

import { askForJob } from "../acts/job-dialog.tsx";
import type { DeadCause, DeadCauses } from "../api/shapes.ts";
import type { DeadFilter } from "../api/plan.ts";
import { Act } from "../parts/act.tsx";
import { Chip } from "../parts/chip.tsx";
import { Rows } from "../parts/rows.tsx";
import { Code, LongText, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { lacks } from "../live/picture.ts";
import { here, link } from "../place/here.ts";
import { number, plural } from "../show/number.ts";
import { bigCount, firstColumn, lastColumn } from "./columns.tsx";
import { deadFilter, whyNoDiscard, whyNoReplay } from "./dead.tsx";

/** What an act on a cause means: the cause, within the filter that is set. */
function filterOf(cause: DeadCause): DeadFilter {
  const filter = { ...deadFilter(here.peek().filters), sink: cause.sink };
  // A letter of an older relay has no number: its code is what it is known by.
  // Nor can a store choose by numbers that it makes out at reading.
  return cause.fingerprint == null || lacks.peek().has("cause") ? { ...filter, code: cause.error_code } : { ...filter, fingerprint: cause.fingerprint };
}

function act(cause: DeadCause, kind: "dead.replay" | "dead.discard"): void {
  askForJob({ outbox: here.peek().outbox, plan: { kind, filter: filterOf(cause) }, about: "letters of this cause" });
}

function Topics({ topics }: { topics: readonly string[] }) {
  return <span class="topics">{topics.slice(0, 3).map((topic) => <Said key={topic} text={topic} most={50} class="tag" />)}
    {topics.length > 3 && <span class="quiet"> and {number(topics.length - 3)} more</span>}</span>;
}

export function CausesTable({ found, isAsking, isFiltered }: { found: DeadCauses | null; isAsking: boolean; isFiltered: boolean }) {
  const open = (cause: DeadCause): string => {
    const { fingerprint, code, ...rest } = filterOf(cause);
    const only = fingerprint === undefined ? { code } : { fingerprint };
    return link("dead", "", Object.fromEntries(Object.entries({ ...rest, ...only }).filter((pair): pair is [string, string] => typeof pair[1] === "string")));
  };
  return <Rows caption="Causes of dead letters, the most frequent first" rows={found?.causes ?? []} isAsking={isAsking && found === null}
    keyOf={(cause) => `${cause.sink} ${cause.fingerprint ?? cause.error_code}`} open={open}
    empty={isFiltered ? "No cause matches." : "No causes: nothing is dead."} columns={[
      bigCount("Letters"),
      { head: "Cause", as: "main", cell: (cause) => <div class="cause">
        <a href={open(cause)} class="cause-link"><Code text={cause.error_code} /></a>
        <div class="cause-error"><Said text={cause.error} most={240} /></div>
        <div class="cause-more"><Topics topics={cause.topics} />{cause.holding > 0 && <Chip tone="warn">holds {plural(cause.holding, "key")}</Chip>}</div>
      </div> },
      { head: "Sink", as: "fit", cell: (cause) => <Said text={cause.sink} most={40} /> },
      firstColumn,
      lastColumn,
      { head: "Acts", as: "acts", cell: (cause) => <>
        <Act small act="replay" onPress={() => act(cause, "dead.replay")} why={whyNoReplay()} label={`Replay ${cause.count} letters: ${cause.error_code}`}>Replay…</Act>
        <Act small kind="quiet" act="discard" onPress={() => act(cause, "dead.discard")} why={whyNoDiscard()} label={`Discard ${cause.count} letters: ${cause.error_code}`}>Discard…</Act>
      </> },
    ]} />;
}

export function OneCause({ cause }: { cause: DeadCause }) {
  return <section class="panel cause-panel">
    <div class="cause-head"><Chip tone="bad">{plural(cause.count, "letter")}</Chip> <Code text={cause.error_code} most={120} /> {cause.holding > 0 && <Chip tone="warn">holds {plural(cause.holding, "key")}</Chip>}</div>
    <p class="cause-full"><LongText text={cause.error} /></p>
    <dl class="facts">
      <div><dt>Sink</dt><dd><Said text={cause.sink} /></dd></div>
      <div><dt>First</dt><dd><When at={cause.first_at} /></dd></div>
      <div><dt>Last</dt><dd><When at={cause.last_at} /></dd></div>
      <div><dt>Topics</dt><dd><Topics topics={cause.topics} /></dd></div>
      <div><dt>Class</dt><dd>{cause.error_class}</dd></div>
      {cause.fingerprint != null && <div><dt>Fingerprint</dt><dd class="mono">{cause.fingerprint}</dd></div>}
    </dl>
    <p><a href={link("event", cause.id, { sink: cause.sink })}>Open the last of them</a> · <a href={link("dead")}>All causes</a></p>
  </section>;
}
