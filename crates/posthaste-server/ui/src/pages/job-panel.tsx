// One job: its state, how far it is, how fast, what is left, and what it left alone.

import { useEffect, useRef, useState } from "preact/hooks";
import { leftAlone } from "../acts/left-alone.ts";
import { askForOrder } from "../acts/order-dialog.tsx";
import { outboxFlag, whyNoAct } from "../acts/rights.ts";
import { path } from "../api/request.ts";
import type { JobStatus } from "../api/shapes.ts";
import { actCommand } from "../cli/command.ts";
import { Act } from "../parts/act.tsx";
import { Chip, type Tone } from "../parts/chip.tsx";
import { Code, LongText, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { link } from "../place/here.ts";
import { nowMs } from "../show/clock.ts";
import { number, plural, rate, span } from "../show/number.ts";
import { progressOf } from "../show/progress.ts";
import { instant } from "../show/time.ts";

export const isOver = (job: JobStatus): boolean => job.state === "done" || job.state === "failed" || job.state === "cancelled";

const TONES: Readonly<Record<JobStatus["state"], Tone>> = { queued: "quiet", running: "busy", paused: "paused", done: "ok", failed: "bad", cancelled: "quiet" };

export function JobStateChip({ job }: { job: JobStatus }) {
  const isLeft = job.state === "running" && !job.alive;
  return <Chip tone={isLeft ? "warn" : TONES[job.state]}>{isLeft ? "running, silent" : job.state}</Chip>;
}

export function JobProgress({ job }: { job: JobStatus }) {
  const { looked, total } = progressOf(job);
  // Without a value the bar says that it is not known how far it is.
  return <div class="progress">
    <progress max={total || looked || 1} value={total === null && !isOver(job) ? undefined : looked} aria-label={`Job ${job.job}`} />
    <span class="num">{number(job.done)} <span class="quiet">{total === null ? "done" : `of ${number(total)}`}{job.left_alone > 0 && `, ${number(job.left_alone)} left alone`}</span></span>
  </div>;
}

/** How fast it goes, by what was seen of it here. */
function usePace(job: JobStatus): number | null {
  const seen = useRef<{ at: number; looked: number }[]>([]);
  const [pace, setPace] = useState<number | null>(null);
  useEffect(() => {
    const all = seen.current;
    all.push({ at: Date.now(), looked: progressOf(job).looked });
    while (all.length > 20) all.shift();
    const first = all[0];
    const last = all[all.length - 1];
    if (first === undefined || last === undefined || last.at - first.at < 500) return;
    setPace(((last.looked - first.looked) * 1_000) / (last.at - first.at));
  }, [job.done, job.left_alone]);
  return pace;
}

export function JobPanel({ job }: { job: JobStatus }) {
  const pace = usePace(job);
  const began = instant(job.started_at);
  const ended = instant(job.ended_at);
  const took = ((Number.isFinite(ended) ? ended : nowMs()) - began) / 1_000;
  const { looked, left } = progressOf(job);
  const average = took > 0.2 ? looked / took : null;
  const speed = isOver(job) ? average : job.state === "running" ? pace ?? average : null;
  const reasons = Object.entries(job.reasons);
  return <section class="panel job-panel" data-job={job.job} data-state={job.state}>
    <div class="job-head"><JobStateChip job={job} /><span class="mono">{job.kind}</span>
      {job.consumer && <span>of consumer <Said text={job.consumer} /></span>}</div>
    <JobProgress job={job} />
    {job.error && <p class="note note-bad"><span class="note-text"><LongText text={job.error} /></span></p>}
    <dl class="facts">
      <div><dt>{isOver(job) ? "Went at" : "Goes at"}</dt><dd>{rate(speed)}{job.rate_per_s != null && <span class="quiet"> of at most {rate(job.rate_per_s)}</span>}</dd></div>
      <div><dt>{isOver(job) ? "Took" : "Time left"}</dt><dd>{isOver(job) ? span(took) : job.state === "running" && speed && left !== null ? `about ${span(left / speed)}` : "–"}</dd></div>
      <div><dt>Done</dt><dd>{number(job.done)}</dd></div>
      <div><dt>Left alone</dt><dd>{number(job.left_alone)}</dd></div>
      <div><dt>Asked</dt><dd><When at={job.created_at} /></dd></div>
      <div><dt>Began</dt><dd><When at={job.started_at} /></dd></div>
      <div><dt>Ended</dt><dd><When at={job.ended_at} /></dd></div>
      <div><dt>By</dt><dd><Said text={job.actor} />{!job.verified && <span class="quiet"> (says so)</span>}</dd></div>
      <div><dt>Run by</dt><dd>{job.owner ? <Said text={job.owner} most={60} /> : "nobody yet"}{job.epoch > 0 && <span class="quiet"> epoch {number(job.epoch)}</span>}</dd></div>
      <div class="fact-wide"><dt>Reason</dt><dd><LongText text={job.reason} /></dd></div>
      <div class="fact-wide"><dt>Never beyond</dt><dd><Code text={job.upto} most={120} /></dd></div>
    </dl>
    {reasons.length > 0 && <><h3>Left alone</h3><ul class="reasons">{reasons.map(([code, many]) => <li key={code}>{plural(many, "time")}: {leftAlone(code)}</li>)}</ul></>}
    <details class="plan"><summary>What is meant</summary><LongText text={JSON.stringify(job.plan, null, 2)} block most={4_000} /></details>
    <p><a href={link("audit", "", { trace_id: job.trace_id })}>Its lines in the audit</a></p>
  </section>;
}

interface JobActsProps {
  readonly job: JobStatus;
  readonly outbox: string;
  readonly onDone: () => void;
  readonly small?: boolean;
}

export function JobActs({ job, outbox, onDone, small = false }: JobActsProps) {
  if (isOver(job)) return small ? null : <span class="quiet">It is over.</span>;
  const isDiscard = job.kind.endsWith("discard");
  const order = (word: "pause" | "resume" | "cancel", means: string, done: string): void => askForOrder({
    title: `${word.charAt(0).toUpperCase()}${word.slice(1)} job ${job.job}`, means, button: word === "cancel" ? "Cancel the job" : word === "pause" ? "Pause" : "Resume",
    danger: word === "cancel", where: `${path`outboxes/${outbox}/jobs/${job.job}`}/${word}`, method: "POST", body: {},
    command: (reason) => actCommand(["jobs", word, job.job], [], { reason }, outboxFlag(outbox)), done, onDone,
  });
  const why = whyNoAct("operate");
  return <>
    {job.state === "paused"
      ? <Act small={small} kind={small ? "plain" : "primary"} act="job-resume" why={isDiscard ? whyNoAct("admin") : why} onPress={() => order("resume", "It goes on behind its last chunk.", `Job ${job.job} goes on.`)} label={`Resume job ${job.job}`}>Resume…</Act>
      : <Act small={small} act="job-pause" why={why} onPress={() => order("pause", "It stops between two chunks. What is done is done.", `Job ${job.job} is paused.`)} label={`Pause job ${job.job}`}>Pause…</Act>}
    <Act small={small} kind={small ? "quiet" : "danger"} act="job-cancel" why={why} onPress={() => order("cancel", "It stops for good. What is done is done, and is not taken back.", `Job ${job.job} is cancelled.`)} label={`Cancel job ${job.job}`}>Cancel…</Act>
  </>;
}
