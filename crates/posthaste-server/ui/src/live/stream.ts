// The one stream of this tab: opened when somebody looks, closed when the tab is hidden or paused.

import { computed, signal } from "@preact/signals";
import { EventStreamParser } from "../api/event-stream.ts";
import { Refused, ask, fetchAnswer, path, query } from "../api/request.ts";
import { apply, tailGap, tailPlace } from "./picture.ts";

/** A heartbeat comes every 5 s: after this the line is dead, whatever the network says. */
const SILENCE_MS = 12_000;
const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 10_000;
/** A stream that ends as it should has lived for longer. */
const LIFE_MIN_MS = 1_000;
/** The server forgets where a tail was when nobody has asked for so long. */
const TAIL_LEFT_MS = 9_000;

export type Link = "connecting" | "live" | "stale" | "paused";

export const linked = signal<Link>("connecting");
/** Why this page looks by itself, if it may have no stream. */
export const refused = signal("");
/** When something came last. */
export const heardAt = signal(0);
/** Why there is no stream. */
export const whyStale = signal("");
export const paused = signal(false);
/** Whether new events are wanted. */
export const wantsTail = signal(false);

const hidden = signal(document.visibilityState === "hidden");
document.addEventListener("visibilitychange", () => {
  hidden.value = document.visibilityState === "hidden";
});

/** Which stream is wanted: another outbox or a tail is another stream. `null`: none. */
const outboxWanted = signal<string | null>(null);
const wanted = computed(() =>
  hidden.value || paused.value || outboxWanted.value === null
    ? null
    : `stream${query({ outbox: outboxWanted.value, tail: wantsTail.value })}`,
);

export function watchOutbox(outbox: string | null): void {
  outboxWanted.value = outbox;
}

let turn = 0;
wanted.subscribe((where) => {
  turn += 1;
  if (where === null) {
    linked.value = paused.value ? "paused" : "connecting";
  } else void run(where, turn);
});

async function run(where: string, mine: number): Promise<void> {
  const isMine = (): boolean => mine === turn;
  let pause = PAUSE_MIN_MS;
  if (linked.peek() !== "stale") linked.value = "connecting";
  while (isMine()) {
    const begun = Date.now();
    const { heard, ended } = await listen(where, isMine);
    if (!isMine()) return;
    if (heard) pause = PAUSE_MIN_MS;
    // It ends with its connection, and the next one goes on where it was.
    if (heard && ended && Date.now() - begun > LIFE_MIN_MS) continue;
    linked.value = "stale";
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, PAUSE_MAX_MS);
  }
}

/** One connection, until it ends or breaks. */
async function listen(where: string, isMine: () => boolean): Promise<{ heard: boolean; ended: boolean }> {
  const abort = new AbortController();
  const stop = wanted.subscribe((now) => {
    if (now !== where) abort.abort();
  });
  let heard = false;
  let ended = false;
  let timer = setTimeout(() => abort.abort(), SILENCE_MS);
  try {
    const after = wantsTail.peek() ? tailPlace() : null;
    const answer = await fetchAnswer(after === null ? where : `${where}&tail_after=${after}`, { signal: abort.signal });
    const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventStreamParser();
    while (reader !== undefined) {
      const { value, done } = await reader.read();
      if (done || !isMine()) break;
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(), SILENCE_MS);
      if (after !== null && !heard && Date.now() - heardAt.peek() > TAIL_LEFT_MS) tailGap.value = true;
      heard = true;
      refused.value = "";
      heardAt.value = Date.now();
      linked.value = "live";
      for (const { event, data } of parser.feed(value)) apply(event, JSON.parse(data));
    }
    ended = true;
    whyStale.value = "the server closed the stream";
  } catch (error) {
    const isSilent = abort.signal.aborted;
    whyStale.value = error instanceof Refused ? error.problem.detail : isSilent ? "nothing came for 12 s" : "the stream broke off";
    if (error instanceof Refused && error.problem.status === 429) {
      refused.value = whyStale.value;
      await lookOnce(isMine);
    }
  } finally {
    clearTimeout(timer);
    abort.abort();
    stop();
  }
  return { heard, ended };
}

/** What a stream would tell of the outbox, without one. */
async function lookOnce(isMine: () => boolean): Promise<void> {
  try {
    const seen = await ask(path`outboxes/${outboxWanted.peek() ?? ""}`);
    if (isMine()) apply("outbox", seen);
  } catch {
    // It looks again in a moment.
  }
}
