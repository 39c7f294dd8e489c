// What the stream told last. Pages read it; nothing else writes it.

import { batch, computed, signal } from "@preact/signals";
import type { Consumers, Jobs, LogEvent, Picture, Point, Series, ShownOutbox } from "../api/shapes.ts";
import { addPoint } from "../charts/series.ts";
import { noteClock } from "../show/clock.ts";

export const outboxes = signal<Picture | null>(null);
export const outbox = signal<ShownOutbox | null>(null);
export const jobs = signal<Jobs | null>(null);
export const consumers = signal<Consumers | null>(null);
export const series = signal<Series | null>(null);

/** Events of the live tail, newest first: so many and no more, or a night's traffic would fill the tab. */
export const TAIL_MAX = 500;
export const tail = signal<readonly LogEvent[]>([]);
/** How many the tail has seen, also those that are gone. */
export const tailSeen = signal(0);

/** Some came while nobody listened, and are not in it. */
export const tailGap = signal(false);
/** Where the tail is, by the server's count, and how many came since: the next stream goes on there. */
let tailAt: number | null = null;
let tailCame = 0;
export function tailPlace(): number | null {
  tailCame = 0;
  return tailAt;
}

let arrived: LogEvent[] = [];
let drawing = 0;

/** Draws at most once a frame, however many came. */
function drawTail(): void {
  drawing = 0;
  // What was sent again after a stream broke off is there already.
  const known = new Set(tail.peek().map(({ seq }) => seq));
  const fresh = arrived.filter(({ seq }) => !known.has(seq));
  arrived = [];
  batch(() => {
    tailSeen.value += fresh.length;
    tail.value = [...fresh.reverse(), ...tail.peek()].slice(0, TAIL_MAX);
  });
}

export function clearTail(): void {
  arrived = [];
  tail.value = [];
  tailSeen.value = 0;
  tailGap.value = false;
}

/** From now on. */
export function beginTail(): void {
  tailAt = null;
  tailCame = 0;
  clearTail();
}

/** Another outbox is looked at: nothing of the one before may stand under its name. */
export function forgetOutbox(): void {
  batch(() => {
    outbox.value = null;
    jobs.value = null;
    series.value = null;
    beginTail();
  });
}

export function forgetAll(): void {
  batch(() => {
    forgetOutbox();
    outboxes.value = null;
    consumers.value = null;
  });
}

export function apply(event: string, data: unknown): void {
  switch (event) {
    case "outboxes": outboxes.value = data as Picture; break;
    case "outbox":
      outbox.value = data as ShownOutbox;
      noteClock(outbox.value.now);
      break;
    case "jobs": jobs.value = data as Jobs; break;
    case "consumers": consumers.value = data as Consumers; break;
    case "series": series.value = data as Series; break;
    case "point": series.value = addPoint(series.peek(), data as Point); break;
    case "tail": {
      arrived.push(data as LogEvent);
      tailCame += 1;
      if (arrived.length > TAIL_MAX) {
        tailSeen.value += arrived.length - TAIL_MAX;
        arrived = arrived.slice(-TAIL_MAX);
      }
      drawing ||= requestAnimationFrame(drawTail);
      break;
    }
    case "tail_at": {
      const at = data as number;
      if (tailAt !== null && at - tailAt !== tailCame) tailGap.value = true;
      tailAt = at;
      tailCame = 0;
      break;
    }
    default: // A newer server says more than this page knows.
  }
}

/** What the outbox's store cannot do, by the name of the thing. */
const lackTexts = computed(() => JSON.stringify((outbox.value?.lacks ?? []).map((lack) => [lack.of, lack.why])));
export const lacks = computed(() => new Map<string, string>(JSON.parse(lackTexts.value)));

/** Whether this server may change something in the outbox; `null`: nobody knows yet. */
export const acting = computed(() => outbox.value?.acting ?? null);

/** Counts of all sinks, as a text: a page looks again when it changes, and is not drawn for any other news. */
export const deadCounts = computed(() => (outbox.value?.sinks ?? []).map((sink) => sink.dead.count).join());
export const deferredCounts = computed(() => (outbox.value?.sinks ?? []).map((sink) => sink.deferred.count).join());

/** Why the database of an outbox cannot be reached; `undefined`: it can, or nothing came yet. */
export function whyAway(name: string): string | undefined {
  const named = [outbox.value, ...(outboxes.value?.outboxes ?? [])].filter((one) => one?.outbox === name);
  return named.find((one) => one?.unreachable != null)?.unreachable ?? undefined;
}
