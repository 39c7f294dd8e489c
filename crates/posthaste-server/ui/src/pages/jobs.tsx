// Jobs: bulk acts with how far they are. One of them, if the address names it.

import { useEffect } from "preact/hooks";
import { path, query } from "../api/request.ts";
import type { JobStatus, Jobs } from "../api/shapes.ts";
import { jobs, lacks } from "../live/picture.ts";
import { linked } from "../live/stream.ts";
import { FilterBar, PickFilter } from "../parts/filter-bar.tsx";
import { useLook, usePages } from "../parts/look.ts";
import { LackNote, ProblemNote } from "../parts/problem-note.tsx";
import { MoreRows, Rows, Waiting } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { here, link } from "../place/here.ts";
import { number } from "../show/number.ts";
import { JobActs, JobPanel, JobProgress, JobStateChip, isOver } from "./job-panel.tsx";
import { PageHead } from "./page-head.tsx";

export function JobsPage() {
  const place = here.value;
  const lack = lacks.value.get("jobs");
  if (lack !== undefined) return <><PageHead title="Jobs" /><LackNote why={lack} /></>;
  return place.of === "" ? <JobList outbox={place.outbox} /> : <OneJob outbox={place.outbox} job={place.of} />;
}

/** What a stream that goes on says of a job. One that stands knows less than the page's own look. */
function told(job: string): JobStatus | undefined {
  return linked.value === "live" ? jobs.value?.jobs.find((one) => String(one.job) === job) : undefined;
}

const fresh = (job: JobStatus): JobStatus => told(String(job.job)) ?? job;

function JobList({ outbox }: { outbox: string }) {
  const filters = here.value.filters;
  const isOpen = filters["open"] === "yes";
  const kind = filters["kind"];
  // Progress comes by the stream; only a new job makes the page look again.
  const newest = jobs.value?.jobs[0]?.job ?? 0;
  const list = usePages<Jobs, JobStatus>(path`outboxes/${outbox}/jobs` + query({ open: isOpen }), (page) => page.jobs, newest);
  const rows = list.rows.map(fresh).filter((job) => (!isOpen || !isOver(job)) && (kind === undefined || job.kind === kind));
  return <>
    <PageHead title="Jobs" about="Bulk acts: written down, done in chunks, and finished by another process if need be." />
    <FilterBar names={["open", "kind"]}>
      <PickFilter name="open" label="Which" any="all" all={[["yes", "not over"]]} />
      <PickFilter name="kind" label="Kind" all={["dead.replay", "dead.discard", "deferred.retry", "events.replay", "consumer.replay", "consumer.discard", "consumer.deferred_retry"]} />
    </FilterBar>
    <section class="panel">
      <Rows caption="Jobs, newest first" rows={rows} isAsking={list.isAsking} keyOf={(job) => String(job.job)} open={(job) => link("jobs", String(job.job))}
        empty={isOpen ? "No job is open." : "No jobs yet. A replay, discard or retry of what a filter matches is one."} columns={[
          { head: "Job", as: "num", cell: (job) => <a href={link("jobs", String(job.job))}>{number(job.job)}</a> },
          { head: "Kind", as: "fit", cell: (job) => <span class="mono">{job.kind}</span> },
          { head: "State", as: "fit", cell: (job) => <JobStateChip job={job} /> },
          { head: "Progress", as: "wide", cell: (job) => <JobProgress job={job} /> },
          { head: "Reason", as: "main", cell: (job) => <Said text={job.reason} most={120} /> },
          { head: "By", as: "fit", cell: (job) => <Said text={job.actor} most={40} /> },
          { head: "Asked", as: "fit", cell: (job) => <When at={job.created_at} /> },
          { head: "Acts", as: "acts", cell: (job) => <JobActs job={job} outbox={outbox} onDone={list.again} small /> },
        ]} />
      <MoreRows pages={list} what="jobs" />
    </section>
  </>;
}

function OneJob({ outbox, job }: { outbox: string; job: string }) {
  const known = told(job);
  const look = useLook<JobStatus>(path`outboxes/${outbox}/jobs/${job}`, known?.state);
  const shown = known ?? look.data;
  const isOld = known === undefined && look.data !== null && !isOver(look.data);
  useEffect(() => {
    // The stream tells of the newest jobs alone; an older one that still runs is asked for.
    if (!isOld) return undefined;
    const timer = setInterval(look.again, 2_000);
    return () => clearInterval(timer);
  }, [isOld, look.again]);
  return <>
    <PageHead title={`Job ${job}`} about={<a href={link("jobs")}>All jobs</a>}>
      {shown && <JobActs job={shown} outbox={outbox} onDone={look.again} />}
    </PageHead>
    {look.problem && <ProblemNote problem={look.problem} again={look.again} />}
    {shown ? <JobPanel job={shown} /> : look.isAsking && <Waiting />}
  </>;
}
