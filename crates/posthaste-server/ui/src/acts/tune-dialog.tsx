// Settings of relays, laid over the file's for a while.

import { useState } from "preact/hooks";
import { path } from "../api/request.ts";
import type { ShownSetting } from "../api/shapes.ts";
import { actCommand } from "../cli/command.ts";
import { CommandLine } from "../parts/command-line.tsx";
import { Dialog, openDialog } from "../parts/dialog.tsx";
import { toast } from "../parts/toast.tsx";
import { number } from "../show/number.ts";
import { Field, TextField } from "./fields.tsx";
import { outboxFlag } from "./rights.ts";
import { useSending } from "./sending.tsx";

const ENDS: readonly (readonly [text: string, words: string, seconds: number])[] = [
  ["15m", "for 15 minutes", 900], ["1h", "for an hour", 3_600], ["4h", "for 4 hours", 14_400], ["12h", "for 12 hours", 43_200], ["48h", "for 2 days", 172_800],
];

export function askForTuning(outbox: string, settings: readonly ShownSetting[], onDone: () => void): void {
  openDialog(<TuneDialog outbox={outbox} settings={settings} onDone={onDone} />);
}

function TuneDialog({ outbox, settings, onDone }: { outbox: string; settings: readonly ShownSetting[]; onDone: () => void }) {
  const { reason, isTried, isSending, note, field, send } = useSending();
  const [texts, setTexts] = useState<Readonly<Record<string, string>>>({});
  const [end, setEnd] = useState("1h");
  const low = ({ file }: ShownSetting): number => Math.max(1, Math.ceil(file / 10));
  const wrongOf = (setting: ShownSetting): string | null => {
    const text = texts[setting.setting]?.trim() ?? "";
    if (text === "") return null;
    const value = /^\d+$/.test(text) ? Number(text) : -1;
    return value < low(setting) || value > setting.file * 10 ? `From ${number(low(setting))} to ${number(setting.file * 10)}.` : null;
  };
  const values = Object.fromEntries(settings.flatMap(({ setting }) => (texts[setting]?.trim() ? [[setting, Number(texts[setting])]] : [])));
  const go = (): void => {
    const isReady = Object.keys(values).length > 0 && settings.every((one) => wrongOf(one) === null);
    const seconds = ENDS.find(([text]) => text === end)?.[2] ?? 3_600;
    send(isReady, path`outboxes/${outbox}/tuning`, { method: "PUT", body: { values, for_s: seconds } }, () => { toast("Tuned: all relays go by it within a heartbeat."); onDone(); });
  };
  const flags = Object.entries(values).map(([name, value]) => [name.replaceAll("_", "-"), value] as const);
  return <Dialog title="Tune relays" onSubmit={go} foot={<button type="submit" class="act act-primary" disabled={isSending}>Tune</button>}>
    <p class="means">What is left empty stays as it is. A value stays within a tenth and ten times of the file's.</p>
    {note}
    <div class="fields fields-even">
      {settings.map((one) => <TextField key={one.setting} label={one.setting} value={texts[one.setting] ?? ""} wrong={wrongOf(one)} placeholder={String(one.in_force)}
        hint={`file ${number(one.file)}, in force ${number(one.in_force)}`} onText={(text) => setTexts({ ...texts, [one.setting]: text })} />)}
      <Field label="How long">{(ids) => <select {...ids} class="select" value={end} onChange={(event) => setEnd(event.currentTarget.value)}>
        {ENDS.map(([value, words]) => <option key={value} value={value}>{words}</option>)}</select>}</Field>
    </div>
    {isTried && Object.keys(values).length === 0 && <p class="hint hint-bad">Give one value at least.</p>}
    {field()}
    <CommandLine text={actCommand(["tune", "set"], [...flags, ["for", end]], { reason }, outboxFlag(outbox))} />
  </Dialog>;
}
