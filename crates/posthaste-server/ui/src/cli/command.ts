// The command that does at a terminal what a dialog does here. Pure.

import type { Plan } from "../api/plan.ts";
import { quote } from "./quote.ts";

/** A flag with its value; one without a value is left out. */
export type Flag = readonly [name: string, value: string | number | boolean | null | undefined];

export interface Wanted {
  readonly reason?: string;
  /** How a rate is said: `200/s`. */
  readonly rate?: number | null;
}

export function command(words: readonly (string | number)[], flags: readonly Flag[]): string {
  const said = ["posthaste", ...words.map((word) => quote(String(word)))];
  for (const [name, value] of flags) {
    if (value === true) said.push(`--${name}`);
    else if (value !== false && value != null && value !== "") {
      // What begins with a dash would be taken for a flag.
      const text = String(value);
      said.push(`--${name}${text.startsWith("-") ? "=" : " "}${quote(text)}`);
    }
  }
  return said.join(" ");
}

/** What stands for a reason that is still to be given. */
const reasonOf = (wanted: Wanted): string => (wanted.reason?.trim() ? wanted.reason.trim() : "…");

/** The command of a job; `outbox` where there are several. */
export function jobCommand(plan: Plan, wanted: Wanted, outbox: string | null): string {
  const end: Flag[] = [
    ["rate", wanted.rate == null ? null : `${wanted.rate}/s`],
    ["reason", reasonOf(wanted)],
    ["outbox", outbox],
  ];
  if (plan.kind === "events.replay") {
    const { topic, key, since, until, from_seq, to_seq } = plan.filter;
    const flags: Flag[] = [
      ["sink", plan.sink], ["topic", topic], ["key", key], ["since", since], ["until", until],
      // Numbers begin at 1, and the command takes no other.
      ["from-seq", from_seq === undefined ? null : Math.max(1, from_seq)], ["to-seq", to_seq],
    ];
    return command(["events", "replay"], [...flags, ...end]);
  }
  const consumer: Flag = ["consumer", "consumer" in plan ? plan.consumer : null];
  if (plan.kind === "deferred.retry" || plan.kind === "consumer.deferred_retry") {
    const { all, ids = [], sink, topic, key, destination, reason, code } = plan.filter;
    const flags: Flag[] = [
      consumer, ["sink", sink], ["topic", topic], ["key", key], ["destination", destination],
      ["why", reason], ["code", code], ...ids.map((id): Flag => ["id", id]), ["all", all],
    ];
    return command(["deferred", "retry"], [...flags, ...end]);
  }
  const { all, ids = [], sink, topic, key, code, fingerprint, since, until } = plan.filter;
  const act = plan.kind.endsWith("discard") ? "discard" : "replay";
  const flags: Flag[] = [
    consumer, ["sink", sink], ["topic", topic], ["key", key], ["code", code], ["fingerprint", fingerprint],
    ["since", since], ["until", until], ["all", all],
  ];
  return command(["dead", act, ...ids], [...flags, ...end]);
}

/** Pause, resume or a rate of a sink or consumer. */
export function controlCommand(
  act: "pause" | "resume" | "rate",
  target: readonly ["sink" | "route" | "consumer", string],
  wanted: Wanted & { readonly forText?: string | null },
  outbox: string | null,
): string {
  const words = act === "rate" ? ["rate", wanted.rate == null ? "off" : String(wanted.rate)] : [act];
  return command(words, [
    [target[0], target[1]], ["for", wanted.forText], ["reason", reasonOf(wanted)], ["outbox", outbox],
  ]);
}

/** Anything else that takes a reason. */
export function actCommand(words: readonly (string | number)[], flags: readonly Flag[], wanted: Wanted, outbox: string | null): string {
  return command(words, [...flags, ["reason", reasonOf(wanted)], ["outbox", outbox]]);
}
