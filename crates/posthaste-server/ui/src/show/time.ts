// Times as people read them: in the time of this place, in UTC, or as a distance from now. Pure.

import { NOTHING, span } from "./number.ts";

export type TimeMode = "local" | "utc" | "relative";
export const TIME_MODES: readonly TimeMode[] = ["local", "utc", "relative"];

interface Parts {
  readonly year: string;
  readonly month: string;
  readonly day: string;
  readonly hour: string;
  readonly minute: string;
  readonly second: string;
}

const formats = new Map<string, Intl.DateTimeFormat>();

function format(utc: boolean): Intl.DateTimeFormat {
  const zone = utc ? "UTC" : "local";
  let found = formats.get(zone);
  if (found === undefined) {
    const digits = "2-digit" as const;
    found = new Intl.DateTimeFormat("en-GB", {
      year: "numeric", month: digits, day: digits, hour: digits, minute: digits, second: digits,
      hourCycle: "h23", ...(utc ? { timeZone: "UTC" } : {}),
    });
    formats.set(zone, found);
  }
  return found;
}

function parts(ms: number, utc: boolean): Parts {
  const all: Record<string, string> = {};
  for (const { type, value } of format(utc).formatToParts(ms)) all[type] = value;
  return all as unknown as Parts;
}

/** Milliseconds of a text in RFC 3339, or NaN. */
export function instant(text: string | null | undefined): number {
  return text == null ? Number.NaN : Date.parse(text);
}

/** The whole of a time: date, time of day, thousandths. */
export function fullTime(ms: number, utc: boolean): string {
  const p = parts(ms, utc);
  const thousandths = String(Math.floor(((ms % 1_000) + 1_000) % 1_000)).padStart(3, "0");
  return `${p.year}-${p.month}-${p.day} ${p.hour}:${p.minute}:${p.second}.${thousandths}${utc ? " UTC" : ""}`;
}

export function relative(ms: number, now: number): string {
  const seconds = (now - ms) / 1_000;
  if (Math.abs(seconds) < 1) return "now";
  // Seconds of an old time change the text each second and say nothing.
  const far = Math.abs(seconds);
  const shown = far < 60 ? Math.floor(far) : far < 3_600 ? Math.floor(far / 60) * 60 : far;
  return seconds > 0 ? `${span(shown)} ago` : `in ${span(shown)}`;
}

/** A time in short: the date is left out where it is today's. */
export function shortTime(ms: number, mode: TimeMode, now: number): string {
  if (!Number.isFinite(ms)) return NOTHING;
  if (mode === "relative") return relative(ms, now);
  const utc = mode === "utc";
  const at = parts(ms, utc);
  const today = parts(now, utc);
  const clock = `${at.hour}:${at.minute}:${at.second}`;
  if (at.year === today.year && at.month === today.month && at.day === today.day) return clock;
  const date = at.year === today.year ? `${at.month}-${at.day}` : `${at.year}-${at.month}-${at.day}`;
  return `${date} ${clock}`;
}

/** `undefined`: too far away for a clock. */
function iso(ms: number): string | undefined {
  const at = new Date(ms);
  return Number.isFinite(at.getTime()) ? at.toISOString() : undefined;
}

/** What a user typed as a time: RFC 3339, or `2h` for two hours ago. `null`: none; `undefined`: no time. */
export function readTime(text: string, now: number): string | null | undefined {
  const bare = text.trim();
  if (bare === "") return null;
  const ago = /^(\d+)\s*(s|m|h|d)$/.exec(bare);
  if (ago !== null) {
    const unit = { s: 1, m: 60, h: 3_600, d: 86_400 }[ago[2] as "s" | "m" | "h" | "d"];
    return iso(now - Number(ago[1]) * unit * 1_000);
  }
  if (!/^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?$/.test(bare)) return undefined;
  return iso(Date.parse(bare.replace(" ", "T")));
}
