// Numbers as people read them. Pure.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** What stands where nothing is known. */
export const NOTHING = "–";

export function number(value: number | null | undefined): string {
  return value == null || !Number.isFinite(value) ? NOTHING : whole.format(value);
}

/** A count that may be an estimate. */
export function count(value: { count: number; exact: boolean } | null | undefined): string {
  if (value == null) return NOTHING;
  return value.exact ? whole.format(value.count) : `~${whole.format(value.count)}`;
}

/** A count of what may be more. */
export function atLeast(value: number, isExact: boolean): string {
  return `${isExact ? "" : "at least "}${number(value)}`;
}

/** So many a second. */
export function rate(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  if (value > 0 && value < 0.1) return "<0.1/s";
  return `${value < 10 ? tenth.format(value) : whole.format(value)}/s`;
}

/** A length of time, in one or two units. */
export function span(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NOTHING;
  const s = Math.max(0, seconds);
  if (s === 0) return "0 s";
  if (s < 1) return `${Math.max(1, Math.round(s * 1_000))} ms`;
  if (s < 10) return `${tenth.format(s)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const two = (large: number, of: string, small: number, and: string): string =>
    small === 0 ? `${large}${of}` : `${large}${of} ${small}${and}`;
  const all = Math.round(s);
  if (all < 3_600) return two(Math.floor(all / 60), "m", all % 60, "s");
  if (all < 86_400) return two(Math.floor(all / 3_600), "h", Math.floor((all % 3_600) / 60), "m");
  return two(Math.floor(all / 86_400), "d", Math.floor((all % 86_400) / 3_600), "h");
}

/** The same in one unit, for the axis of a chart. */
export function axisSpan(seconds: number | null): string {
  if (seconds === null || seconds < 60) return span(seconds);
  if (seconds < 3_600) return `${tenth.format(seconds / 60)}m`;
  return seconds < 86_400 ? `${tenth.format(seconds / 3_600)}h` : `${tenth.format(seconds / 86_400)}d`;
}

/** A number as short as can be: 12.5k. */
export function axisNumber(value: number | null): string {
  if (value === null || value < 10_000) return value === null ? NOTHING : tenth.format(value);
  return value < 1e6 ? `${tenth.format(value / 1e3)}k` : `${tenth.format(value / 1e6)}M`;
}

export function millis(ms: number | null | undefined): string {
  if (ms == null || !Number.isFinite(ms)) return NOTHING;
  if (ms > 0 && ms < 1) return "<1 ms";
  return ms < 10 ? `${tenth.format(ms)} ms` : span(ms / 1_000);
}

export function bytes(value: number | null | undefined): string {
  if (value == null || !Number.isFinite(value)) return NOTHING;
  if (value < 1_024) return `${value} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let size = value / 1_024;
  let unit = 0;
  while (size >= 1_000 && unit < units.length - 1) {
    size /= 1_024;
    unit += 1;
  }
  return `${size < 10 ? tenth.format(size) : whole.format(size)} ${units[unit]}`;
}

/** A word with its number: 1 event, 2 events. */
export function plural(many: number, one: string, more = `${one}s`): string {
  return `${whole.format(many)} ${many === 1 ? one : more}`;
}

/** What a user typed as a rate: a number above zero, perhaps with `/s`. `null`: none; `undefined`: no rate. */
export function readRate(text: string): number | null | undefined {
  const bare = text.trim().replace(/\/s$/, "").trim();
  if (bare === "") return null;
  if (!/^\d+(\.\d+)?$/.test(bare)) return undefined;
  const value = Number(bare);
  return value > 0 && Number.isFinite(value) ? value : undefined;
}
