// A bulk act, in two steps: what it would do, and then the job. It acts on what was seen, and never beyond.

import { useEffect, useRef, useState } from "preact/hooks";
import { type Plan, actOf } from "../api/plan.ts";
import { type Problem, ask, idempotencyKey, path, problemIn } from "../api/request.ts";
import type { JobStatus, Preview } from "../api/shapes.ts";
import { jobCommand } from "../cli/command.ts";
import { CommandLine } from "../parts/command-line.tsx";
import { Dialog, openDialog } from "../parts/dialog.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Waiting } from "../parts/rows.tsx";
import { toast } from "../parts/toast.tsx";
import { link } from "../place/here.ts";
import { atLeast, plural, readRate, span } from "../show/number.ts";
import { TextField } from "./fields.tsx";
import { leftAlone } from "./left-alone.ts";
import { outboxFlag } from "./rights.ts";
import { Sample } from "./sample.tsx";
import { useSending } from "./sending.tsx";

export interface JobAsk {
  readonly outbox: string;
  readonly plan: Plan;
  /** What it is about, as a sentence goes on: "letters of this cause". */
  readonly about: string;
  readonly onBegun?: () => void;
}

export function askForJob(wanted: JobAsk): void {
  openDialog(<JobDialog {...wanted} />);
}

const NOUNS = { letters: ["letter", "letters"], events: ["event", "events"], messages: ["message", "messages"] } as const;

function noun(kind: string, many: number): string {
  const which = kind === "consumer.deferred_retry" ? "messages" : kind.startsWith("dead") || kind.startsWith("consumer") ? "letters" : "events";
  return NOUNS[which][many === 1 ? 0 : 1];
}

const MEANS: Readonly<Record<string, string>> = {
  "dead.replay": "Each goes back to its place, and later events of its key go on waiting for it.",
  "dead.discard": "They are gone then: nobody can bring them back, and their events are never delivered to that sink.",
  "deferred.retry": "They are tried now. What waits behind another of its key, or for its time, goes on waiting.",
  "events.replay": "They are sent to this sink once more, beside what comes in.",
  "consumer.replay": "The consumer handles them again, in order of their keys.",
  "consumer.discard": "They are gone then: nobody can bring them back, and the consumer never handles them.",
  "consumer.deferred_retry": "They are tried now. What waits behind another of its key goes on waiting.",
};

function JobDialog({ outbox, plan, about, onBegun }: JobAsk) {
  const [preview, setPreview] = useState<Preview | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const { reason, isSending, note, field, send } = useSending();
  const [rateText, setRate] = useState("");
  // One dialog is one job, however often its button is pressed.
  const key = useRef(idempotencyKey());
  const where = path`outboxes/${outbox}/jobs`;
  const look = (): void => {
    setProblem(null);
    ask<Preview>(where, { method: "POST", body: { ...plan, dry_run: true } }).then(setPreview, (error: unknown) => setProblem(problemIn(error)));
  };
  useEffect(look, []);

  const act = actOf(plan.kind);
  const rate = readRate(rateText);
  const { goes, exact } = preview ?? { goes: 0, exact: true };
  const isNothing = goes === 0 && exact;
  const rateWrong = rate === undefined ? "A number above 0, as 200." : null;
  const flag = outboxFlag(outbox);

  const go = (): void => {
    const body = { ...plan, upto: preview?.upto, ...(rate == null ? {} : { rate_per_s: rate }) };
    send<JobStatus>(!isNothing && rate !== undefined, where, { method: "POST", body, idempotencyKey: key.current }, ({ job }) => {
      onBegun?.();
      const what = `${act} of ${atLeast(goes, exact)} ${noun(plan.kind, goes)} began.`;
      toast(what, "ok", { to: link("jobs", String(job), {}, outbox), text: `Job ${job}` });
    });
  };

  const danger = act === "Discard";
  return <Dialog title={`${act} ${about}`} onSubmit={go} foot={<button type="submit" class={danger ? "act act-danger" : "act act-primary"} disabled={isNothing || isSending}>
    {preview === null ? act : isSending ? "Sending…" : `${act} ${atLeast(goes, exact)}`}
  </button>}>
    {preview === null && problem === null && <Waiting />}
    {preview !== null && <PreviewPart preview={preview} kind={plan.kind} />}
    {preview !== null && <p class={danger ? "means means-danger" : "means"}>{MEANS[plan.kind]} Only what was seen just now is touched.</p>}
    {problem && <ProblemNote problem={problem} again={look} />}
    {note}
    <div class="fields">
      {field(true)}
      <TextField label="Rate, a second" name="rate" value={rateText} onText={setRate} wrong={rateWrong} short placeholder="no limit"
        hint={rate != null && goes > 0 ? `${exact ? "about" : "at least"} ${span(goes / rate)}` : "as fast as it goes"} />
    </div>
    <CommandLine text={jobCommand(plan, { reason, rate: rate ?? null }, flag)} />
  </Dialog>;
}

function PreviewPart({ preview, kind }: { preview: Preview; kind: string }) {
  const { goes, exact, samples } = preview;
  const alone = Object.entries(preview.left_alone).filter(([, many]) => many > 0);
  const all = alone.reduce((sum, [, many]) => sum + many, 0);
  return <div class="preview">
    <dl class="preview-counts">
      <div><dt>{goes === 1 ? "goes" : "go"}</dt><dd data-count="goes">{atLeast(goes, exact)}</dd></div>
      <div><dt>left alone</dt><dd>{atLeast(all, exact)}</dd></div>
    </dl>
    {alone.length > 0 && <ul class="reasons">{alone.map(([code, many]) => <li key={code}>{plural(many, noun(kind, 1), noun(kind, 2))}: {leftAlone(code)}</li>)}</ul>}
    {!exact ? <p>There are more than were counted: the job looks at all of them.</p> : goes === 0 && <p>Nothing matches any more: nothing would be done.</p>}
    {samples.length > 0 && <details class="samples">
      <summary>{goes > samples.length || !exact ? `${samples.length} of them` : "These"}</summary>
      <ul>{samples.map((sample, index) => <li key={index}><Sample sample={sample} /></li>)}</ul>
    </details>}
  </div>;
}
