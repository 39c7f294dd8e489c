// A time, as the switch at the top says.

import { useComputed } from "@preact/signals";
import { NOTHING } from "../show/number.ts";
import { second, timeMode, nowMs } from "../show/clock.ts";
import { Said } from "./said.tsx";
import { type TimeMode, fullTime, instant, shortTime } from "../show/time.ts";

interface WhenProps {
  readonly at: string | null | undefined;
  /** Always so, whatever the switch says. */
  readonly as?: TimeMode;
}

export function When({ at, as }: WhenProps) {
  const ms = instant(at);
  const text = useComputed(() => {
    const mode = as ?? timeMode.value;
    const now = mode === "relative" ? Math.max(second.value, nowMs()) : nowMs();
    return shortTime(ms, mode, now);
  });
  if (!Number.isFinite(ms) || at == null) return <span class="quiet">{at == null ? NOTHING : <Said text={at} most={40} />}</span>;
  return <time class="when" dateTime={at} title={`${fullTime(ms, false)} here\n${fullTime(ms, true)}`}>{text}</time>;
}
