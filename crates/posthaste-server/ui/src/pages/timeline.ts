// One event's life as moments in order. Long times without anything are folded. Pure.

import type { Attempt, ShownLife } from "../api/shapes.ts";
import { plural } from "../show/number.ts";
import { instant } from "../show/time.ts";

export type MomentTone = "begin" | "ok" | "bad" | "dead" | "act" | "wait";

export interface Moment {
  /** In milliseconds; `null`: it is to come, or nobody knows when it was. */
  readonly at: number | null;
  /** The same as it was said: one that is too far away for a clock is text alone. */
  readonly said?: string | null | undefined;
  readonly tone: MomentTone;
  readonly sink: string | null;
  readonly text: string;
  readonly code?: string;
  readonly error?: string;
}

/** A time without anything that is longer than this is folded. */
const FOLD_MS = 60_000;

export type Step = Moment | { readonly gapMs: number };

/** Attempts of waiting events are not in the answer about an event: who knows them hands them over. */
export function moments(life: ShownLife, attempts: ReadonlyMap<string, readonly Attempt[]>): Moment[] {
  const all: Moment[] = [];
  const add = (said: string | null | undefined, tone: MomentTone, sink: string | null, text: string, more: { code?: string; error?: string } = {}): void => {
    all.push({ at: orNull(instant(said)), said, tone, sink, text, ...more });
  };
  add(life.event.appended_at, "begin", null, `appended as number ${life.event.seq}`);
  if (life.event.deliver_at != null) add(life.event.deliver_at, "wait", null, "not to be delivered before this time");
  for (const { sink, passed, waiting, dead, behind } of life.sinks) {
    const tried = dead?.history ?? attempts.get(sink) ?? [];
    // What was refused before it was sent has a failure in its history, and no attempt.
    const failed = dead?.attempts === 0 ? "refused" : "attempt failed";
    for (const { at, code, error } of tried) add(at, "bad", sink, failed, { code, error });
    if (waiting != null) {
      const known = tried.some((one) => one.at === waiting.last_error_at);
      if (!known && waiting.last_error != null) add(waiting.last_error_at, "bad", sink, "attempt failed", { error: waiting.last_error });
      const why = behind == null ? `waits: ${waiting.reason}` : `waits behind number ${behind} of its key`;
      add(waiting.due_at, "wait", sink, waiting.due_at == null ? why : `${why}; due`);
    }
    if (dead != null) add(dead.dead_at, "dead", sink, dead.attempts === 0 ? "given up without an attempt" : `given up after ${plural(dead.attempts, "attempt")}`, { code: dead.error_code });
    // A cursor passes what is set aside, too: only what neither waits nor is dead was delivered.
    if (passed != null && waiting == null && dead == null) add(passed.settled_at, "ok", sink, `settled in lane ${passed.lane}, epoch ${passed.epoch}`);
  }
  for (const act of life.acts) add(act.at, "act", null, `${act.action} by ${act.actor}: “${act.reason}”`);
  const place = (one: Moment): number => one.at ?? Number.POSITIVE_INFINITY;
  // Equal times stay in the order of the story.
  return all.map((one, index) => ({ one, index })).sort((a, b) => compare(place(a.one), place(b.one)) || a.index - b.index).map(({ one }) => one);
}

function orNull(ms: number): number | null {
  return Number.isFinite(ms) ? ms : null;
}

export function folded(all: readonly Moment[]): Step[] {
  const steps: Step[] = [];
  let before: number | null = null;
  for (const one of all) {
    if (before !== null && one.at !== null && one.at - before > FOLD_MS) steps.push({ gapMs: one.at - before });
    steps.push(one);
    before = one.at ?? before;
  }
  return steps;
}

/** Two times that are to come are equal; their difference would be no number. */
function compare(one: number, two: number): number {
  return one === two ? 0 : one < two ? -1 : 1;
}
