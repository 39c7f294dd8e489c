// Pause, resume and rate of a sink or a consumer.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { path } from "../api/request.ts";
import { controlCommand } from "../cli/command.ts";
import { CommandLine } from "../parts/command-line.tsx";
import { Dialog, openDialog } from "../parts/dialog.tsx";
import { toast } from "../parts/toast.tsx";
import { readRate } from "../show/number.ts";
import { Field, TextField } from "./fields.tsx";
import { outboxFlag } from "./rights.ts";
import { useSending } from "./sending.tsx";

export interface ControlAsk {
  readonly act: "pause" | "resume" | "rate";
  readonly target: readonly ["sink" | "route" | "consumer", string];
  readonly outbox: string;
  readonly rateNow?: number | null;
}

export function askForControl(wanted: ControlAsk): void {
  openDialog(<ControlDialog {...wanted} />);
}

const ENDS: readonly (readonly [value: string, words: string, seconds: number | null])[] = [
  ["", "until somebody ends it", null], ["15m", "for 15 minutes", 900], ["1h", "for an hour", 3_600], ["2h", "for 2 hours", 7_200],
  ["8h", "for 8 hours", 28_800], ["24h", "for a day", 86_400],
];

const MEANS: Readonly<Record<string, Readonly<Record<string, ComponentChildren>>>> = {
  sink: {
    pause: "Nothing is lost: events stay in the log and wait. It holds within a heartbeat, in every relay.",
    resume: "What waited is delivered, in order.",
    rate: "Events a second over all relays together. It goes before the configuration's limit.",
  },
  route: { pause: "Nothing is lost: events of this route wait among the deferred.", resume: "What waited is delivered, in order." },
  consumer: {
    pause: "It begins nothing, and the broker keeps its messages.",
    resume: "It goes on where it stopped.",
    rate: "Messages a second, in each process that runs it.",
  },
};

function addressOf([kind, name]: ControlAsk["target"], outbox: string): string {
  if (kind === "sink") return path`outboxes/${outbox}/sinks/${name}/control`;
  return kind === "route" ? path`outboxes/${outbox}/routes/${name}/control` : path`consumers/${name}/control`;
}

const WORDS = { pause: "Pause", resume: "Resume", rate: "Limit the rate of" } as const;
const DONE = { pause: "is paused", resume: "goes on", rate: "has a new rate" } as const;

function ControlDialog({ act, target, outbox, rateNow = null }: ControlAsk) {
  const { reason, isSending, note, field, send } = useSending();
  const [rateText, setRate] = useState(rateNow === null ? "" : String(rateNow));
  const [end, setEnd] = useState("");
  const [kind, name] = target;
  const rate = readRate(rateText);
  const rateWrong = rate === undefined ? "A number above 0, as 200; empty lifts the limit." : null;
  const seconds = ENDS.find(([value]) => value === end)?.[2] ?? null;
  const hasEnd = act === "pause" || (act === "rate" && rate != null);
  const go = (): void => {
    const what = act === "rate" ? { rate_per_s: rate ?? null } : { paused: act === "pause" };
    const body = { ...what, ...(hasEnd && seconds !== null ? { for_s: seconds } : {}) };
    send(act !== "rate" || rate !== undefined, addressOf(target, outbox), { method: "PUT", body }, () => toast(`${kind} ${name} ${DONE[act]}.`));
  };
  const command = controlCommand(act, target, { reason, rate: rate ?? null, forText: hasEnd && end !== "" ? end : null }, outboxFlag(outbox));
  return <Dialog title={`${WORDS[act]} ${kind} ${name}`} onSubmit={go} foot={<button type="submit" class="act act-primary" disabled={isSending}>
    {act === "rate" ? (rate == null ? "Lift the limit" : `Limit to ${rate}/s`) : WORDS[act]}
  </button>}>
    <p class="means">{MEANS[kind]?.[act]}</p>
    {note}
    <div class="fields">
      {field(act !== "rate")}
      {act === "rate" && <TextField label="Rate, a second" name="rate" value={rateText} onText={setRate} wrong={rateWrong} short placeholder="no limit" first hint="empty lifts the limit" />}
      {hasEnd && <Field label="How long">{(ids) => <select {...ids} class="select" value={end} onChange={(event) => setEnd(event.currentTarget.value)}>
        {ENDS.map(([value, words]) => <option key={value} value={value}>{words}</option>)}
      </select>}</Field>}
    </div>
    <CommandLine text={command} />
  </Dialog>;
}
