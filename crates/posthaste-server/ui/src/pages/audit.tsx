// The audit of all outboxes that one may see: who did what, and why.

import { whyNot } from "../acts/rights.ts";
import { fetchAnswer, problemIn, query } from "../api/request.ts";
import { me } from "../api/enter.ts";
import type { Trail, TrailLine } from "../api/shapes.ts";
import { Act } from "../parts/act.tsx";
import { Chip } from "../parts/chip.tsx";
import { FilterBar, PickFilter, TextFilter, TimeFilter } from "../parts/filter-bar.tsx";
import { usePages } from "../parts/look.ts";
import { LackNote, ProblemNote } from "../parts/problem-note.tsx";
import { MoreRows, Rows } from "../parts/rows.tsx";
import { LongText, Said } from "../parts/said.tsx";
import { save } from "../parts/save.ts";
import { toast } from "../parts/toast.tsx";
import { When } from "../parts/when.tsx";
import { here, link } from "../place/here.ts";
import { PageHead } from "./page-head.tsx";

const NAMES = ["outbox", "actor", "action", "trace_id", "since", "until"] as const;
const ACTIONS = ["replay", "discard", "retry", "replay_log", "pause", "resume", "rate", "pause job", "resume job", "cancel job", "tune", "untune", "set_lanes", "rewind", "repair"];

export function AuditPage() {
  const why = whyNot("operate");
  return why === null ? <AuditTrail /> : <><PageHead title="Audit" /><LackNote why={why} /></>;
}

async function download(wanted: object): Promise<void> {
  try {
    const answer = await fetchAnswer(`audit.csv${query(wanted)}`);
    save(await answer.blob(), "audit.csv");
    toast(answer.headers.has("link") ? "The newest 1,000 lines are in audit.csv; narrow the filter for others." : "audit.csv is there.");
  } catch (error) {
    toast(problemIn(error).detail, "bad");
  }
}

function AuditTrail() {
  const { filters } = here.value;
  const wanted = Object.fromEntries(NAMES.flatMap((name) => (filters[name] === undefined ? [] : [[name, filters[name]]])));
  const list = usePages<Trail, TrailLine>(`audit${query(wanted)}`, (page) => page.audit);
  const away = Object.entries(list.last?.unreachable ?? {});
  const outboxes = me.value?.outboxes ?? [];
  return <>
    <PageHead title="Audit" about="Who did what, and why. What was denied stands here, too.">
      <Act onPress={list.again}>Look again</Act>
      <Act onPress={() => void download(wanted)}>Download CSV</Act>
    </PageHead>
    <FilterBar names={NAMES}>
      {outboxes.length > 1 && <PickFilter name="outbox" label="Outbox" all={outboxes} />}
      <TextFilter name="actor" label="Who" />
      <PickFilter name="action" label="Action" all={ACTIONS} />
      <TextFilter name="trace_id" label="Trace" />
      <TimeFilter name="since" label="Since" />
      <TimeFilter name="until" label="Until" />
    </FilterBar>
    {away.map(([name, reason]) => <ProblemNote key={name} problem={{ status: 0, code: name, detail: reason, events: "", do: "The lines of the others are here." }} />)}
    <section class="panel">
      <Rows caption="Lines of the audit, newest first" rows={list.rows} isAsking={list.isAsking} keyOf={(line) => `${line.outbox}/${line.id}`}
        empty={Object.keys(wanted).length > 0 ? "No line matches." : "Nobody has done anything yet."} columns={[
          { head: "When", as: "fit", cell: (line) => <When at={line.at} /> },
          ...(outboxes.length > 1 ? [{ head: "Outbox", as: "fit" as const, cell: (line: TrailLine) => <Said text={line.outbox} most={40} /> }] : []),
          { head: "Who", as: "fit", cell: (line) => <>{!line.verified && <span class="quiet" title="At a terminal or in SQL: nobody checked it.">says </span>}<Said text={line.actor} most={60} /></> },
          { head: "Did", as: "fit", cell: (line) => <><b><Said text={line.action} most={40} /></b>{line.outcome !== "done" && <> <Chip tone="bad">{line.outcome}</Chip></>}</> },
          { head: "Why", as: "wide", cell: (line) => <LongText text={line.reason} most={160} /> },
          { head: "About", as: "main", cell: (line) => <Detail detail={line.detail} /> },
          { head: "Trace", as: "fit", cell: (line) => line.trace_id == null ? "–" : <a class="mono" href={link("audit", "", { trace_id: line.trace_id })} title={line.trace_id}>{line.trace_id.slice(0, 8)}</a> },
        ]} />
      <MoreRows pages={list} what="lines" />
    </section>
  </>;
}

/** What it was about, as short as can be: members that say nothing are left out. */
function shortDetail(detail: unknown): string {
  const bare = (value: unknown): unknown => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
    const members = Object.entries(value).map(([name, inner]) => [name, bare(inner)] as const);
    return Object.fromEntries(members.filter(([, inner]) => inner !== null && inner !== false && !(Array.isArray(inner) && inner.length === 0)));
  };
  const shown = bare(detail);
  if (typeof shown !== "object" || shown === null) return String(shown ?? "");
  return Object.entries(shown).map(([name, value]) => `${name} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}

function Detail({ detail }: { detail: unknown }) {
  const text = shortDetail(detail);
  return text === "" ? <span class="quiet">–</span> : <span class="quiet"><LongText text={text} most={220} /></span>;
}
