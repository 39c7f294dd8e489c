// A choice of the sink that events go to again.

import { useState } from "preact/hooks";
import { outbox } from "../live/picture.ts";
import { Act } from "../parts/act.tsx";
import { Dialog, openDialog } from "../parts/dialog.tsx";
import { Field } from "./fields.tsx";
import { whyNoAct } from "./rights.ts";

type Pick = (sink: string) => void;

export function ReplayTo({ onPick, why = null }: { onPick: Pick; why?: string | null }) {
  const sinks = (outbox.value?.sinks ?? []).filter((sink) => !sink.retired).map((sink) => sink.sink);
  const no = whyNoAct("operate", "replay") ?? whyNoAct("operate", "jobs") ?? why ?? (sinks.length === 0 ? "There is no sink." : null);
  return <Act why={no} onPress={() => openDialog(<PickSink sinks={sinks} onPick={onPick} />)} act="replay">Replay to…</Act>;
}

function PickSink({ sinks, onPick }: { sinks: readonly string[]; onPick: Pick }) {
  const [sink, setSink] = useState(sinks[0] ?? "");
  return <Dialog title="Replay to a sink" onSubmit={() => onPick(sink)} foot={<button type="submit" class="act act-primary">Go on…</button>}>
    <Field label="Sink">{(ids) => <select {...ids} class="select" autofocus value={sink} onChange={(event) => setSink(event.currentTarget.value)}>
      {sinks.map((one) => <option key={one} value={one}>{one}</option>)}
    </select>}</Field>
  </Dialog>;
}
