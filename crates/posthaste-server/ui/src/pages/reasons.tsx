// What something waits for, in words.

import { Chip, type Tone } from "../parts/chip.tsx";
import { own } from "../show/text.ts";

const WORDS: Readonly<Record<string, readonly [words: string, tone: Tone]>> = {
  retry: ["a retry", "warn"],
  unknown: ["an unknown outcome", "warn"],
  outage: ["the end of an outage", "bad"],
  scheduled: ["its time", "quiet"],
  held: ["its key", "quiet"],
  behind: ["its key", "quiet"],
  replayed: ["its replay", "busy"],
  redriven: ["its redrive", "busy"],
  paused: ["a paused route", "paused"],
};

export const REASONS: readonly (readonly [string, string])[] = [
  ["retry", "a retry"], ["outage", "the end of an outage"], ["scheduled", "its time"], ["held", "its key"], ["replayed", "its replay"], ["unknown", "an unknown outcome"],
];

export function Reason({ reason }: { reason: string }) {
  const [words, tone] = own(WORDS, reason) ?? [reason, "quiet" as const];
  return <Chip tone={tone} icon={tone === "quiet" ? "clock" : tone === "bad" ? "warn" : tone === "warn" ? "again" : tone === "paused" ? "pause" : "again"}>{words}</Chip>;
}
