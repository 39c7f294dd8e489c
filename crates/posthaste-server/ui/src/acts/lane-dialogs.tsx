// The number of lanes, and sending a sink its history again.

import { useMemo, useState } from "preact/hooks";
import { path } from "../api/request.ts";
import type { SinkStatus } from "../api/shapes.ts";
import { actCommand } from "../cli/command.ts";
import { CommandLine } from "../parts/command-line.tsx";
import { Dialog, openDialog } from "../parts/dialog.tsx";
import { Said } from "../parts/said.tsx";
import { toast } from "../parts/toast.tsx";
import { nowMs } from "../show/clock.ts";
import { number, plural } from "../show/number.ts";
import { readTime } from "../show/time.ts";
import { useDryRun } from "./dry-run.ts";
import { Field, TextField } from "./fields.tsx";
import { outboxFlag } from "./rights.ts";
import { useSending } from "./sending.tsx";

const LANES_MAX = 256;

export function askForLanes(outbox: string, lanes: number): void {
  openDialog(<LanesDialog outbox={outbox} now={lanes} />);
}

function LanesDialog({ outbox, now }: { outbox: string; now: number }) {
  const { reason, isSending, note, field, send } = useSending();
  const [text, setText] = useState(String(now));
  const lanes = /^\d+$/.test(text.trim()) ? Number(text) : 0;
  const wrong = lanes < 1 || lanes > LANES_MAX ? `From 1 to ${LANES_MAX}.` : null;
  const where = path`outboxes/${outbox}/lanes`;
  const would = useDryRun(where, "PUT", wrong === null ? { lanes } : null);
  const go = (): void => send(wrong === null, where, { method: "PUT", body: { lanes } }, () => toast(`${plural(lanes, "lane")} from now on; they are drained first.`));
  return <Dialog title="Change the number of lanes" onSubmit={go} foot={<button type="submit" class="act act-primary" disabled={isSending}>Change to {number(lanes)}</button>}>
    <p class="means">Now {number(now)}. Lanes are drained first. Some events may be sent twice, none is skipped, and the order of each key is kept.</p>
    <DryRun says={would} />
    {note}
    <div class="fields">
      {field(true)}
      <TextField label="Lanes of each sink" value={text} onText={setText} wrong={wrong} short />
    </div>
    <CommandLine text={actCommand(["lanes", "set", lanes], [], { reason }, outboxFlag(outbox))} />
  </Dialog>;
}

export function askForRewind(outbox: string, sink: SinkStatus): void {
  openDialog(<RewindDialog outbox={outbox} sink={sink} />);
}

/** What the server would do; a line is kept for it. */
function DryRun({ says }: { says: string | null }) {
  return <p class="dry-run" role="status">{says === null ? "\u00a0" : <Said text={says} most={400} />}</p>;
}

type Where = "time" | "seq" | "earliest";

function RewindDialog({ outbox, sink }: { outbox: string; sink: SinkStatus }) {
  const { reason, isTried, isSending, note, field, send } = useSending();
  const [where, setWhere] = useState<Where>("time");
  const [text, setText] = useState("");
  // What is typed means one moment, however long the dialog is open.
  const time = useMemo(() => (where === "time" ? readTime(text, nowMs()) : null), [where, text]);
  const seq = where === "seq" && /^\d+$/.test(text.trim()) ? Number(text.trim()) : null;
  const isMissing = where !== "earliest" && text.trim() === "";
  const wrong = isMissing ? (isTried ? "Say where to." : null) : where === "time" && time === undefined ? "A time, or 2h for two hours ago." : where === "seq" && seq === null ? "A whole number." : null;
  const place = where === "earliest" ? "earliest" : where === "seq" ? `seq:${seq ?? "…"}` : `time:${time ?? "…"}`;
  const body = where === "earliest" ? { earliest: true } : where === "seq" ? { to_seq: seq } : { to_time: time };
  const isReady = !isMissing && wrong === null;
  const address = path`outboxes/${outbox}/sinks/${sink.sink}/rewind`;
  const would = useDryRun(address, "POST", isReady ? body : null);
  const go = (): void => send(isReady, address, { method: "POST", body }, () => toast(`Sink ${sink.sink} is rewound.`));
  return <Dialog title={`Rewind sink ${sink.sink}`} onSubmit={go} foot={<button type="submit" class="act act-danger" disabled={isSending}>Rewind</button>}>
    <p class="means means-danger">Everything from that place on is sent again, to this sink alone. It never goes forward: nothing can be skipped with it.</p>
    <DryRun says={would} />
    {note}
    <div class="fields fields-even">
      <Field label="To">{(ids) => <select {...ids} class="select" value={where} onChange={(event) => setWhere(event.currentTarget.value as Where)}>
        <option value="time">the first event at or after a time</option><option value="seq">behind a number</option><option value="earliest">the oldest that the log holds</option>
      </select>}</Field>
      {where !== "earliest" && <TextField label={where === "time" ? "Time" : "Number"} value={text} onText={setText} wrong={wrong} placeholder={where === "time" ? "2h, or 2026-11-15T08:00:00Z" : ""} />}
    </div>
    {field()}
    <CommandLine text={actCommand(["lanes", "rewind"], [["sink", sink.sink], ["to", place]], { reason }, outboxFlag(outbox))} />
  </Dialog>;
}
