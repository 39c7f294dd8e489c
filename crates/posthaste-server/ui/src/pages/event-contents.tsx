// What an event carries, as far as the token may see it.

import { useEffect, useState } from "preact/hooks";
import { seesPayloads } from "../acts/rights.ts";
import { type Problem, fetchAnswer, path, problemIn } from "../api/request.ts";
import type { Maybe, ShownLife } from "../api/shapes.ts";
import { Act } from "../parts/act.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Waiting } from "../parts/rows.tsx";
import { LongText, Said } from "../parts/said.tsx";
import { save } from "../parts/save.ts";
import { toast } from "../parts/toast.tsx";
import { bytes } from "../show/number.ts";
import { hexLines, pretty } from "../show/text.ts";

type View = "pretty" | "raw" | "hex";
type Bytes = Uint8Array<ArrayBuffer>;
/** So much is shown, and twice as much with each press. */
const STEP = 64 << 10;

interface PayloadProps {
  readonly size: Maybe<number>;
  /** If it is text. */
  readonly text: Maybe<string>;
  readonly load: () => Promise<Bytes>;
  /** What a file of it is called. */
  readonly file: string;
}

/** A payload as text, in hex, or as a file. However large it is, somebody can see all of it. */
export function Payload({ size, text, load, file }: PayloadProps) {
  const isText = text != null;
  const shaped = isText ? pretty(text) : null;
  const [chosen, choose] = useState<View | null>(null);
  const view: View = chosen ?? (shaped !== null ? "pretty" : isText ? "raw" : "hex");
  const isShown = size != null && seesPayloads();
  const views: readonly View[] = shaped !== null ? ["pretty", "raw", "hex"] : isText ? ["raw", "hex"] : ["hex"];
  const download = (): void => void load().then((all) => save(all, file), (error: unknown) => toast(problemIn(error).detail, "bad"));
  return <section class="panel"><div class="panel-head"><h2>Payload</h2>
    {isShown && <div class="page-acts"><div class="segments" role="group" aria-label="How it is shown">
      {views.map((one) => <button key={one} type="button" class="segment" aria-pressed={one === view} onClick={() => choose(one)}>{one}</button>)}
    </div><Act small kind="quiet" onPress={download}>Download</Act></div>}</div>
    {size == null ? <p class="quiet pad">None: it is a tombstone, which tells a compacting broker to forget the key.</p>
      : !isShown ? <p class="quiet pad">{bytes(size)}. Your token does not see payloads.</p>
        : view === "hex" || !isText ? <Hex load={load} file={file} /> : <div class="pad"><LongText text={view === "pretty" ? shaped ?? text : text} most={4_000} block /></div>}
  </section>;
}

export function EventPayload({ life: { event, payload }, outbox }: { life: ShownLife; outbox: string }) {
  const load = async (): Promise<Bytes> => new Uint8Array(await (await fetchAnswer(path`outboxes/${outbox}/events/${event.seq}/payload`)).arrayBuffer());
  return <Payload size={event.payload_bytes} text={payload} load={load} file={`event-${event.seq}.payload`} />;
}

function Hex({ load, file }: Pick<PayloadProps, "load" | "file">) {
  const [found, keep] = useState<Bytes | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [most, show] = useState(STEP);
  useEffect(() => { load().then(keep, (error: unknown) => setProblem(problemIn(error))); }, [file]);
  if (problem) return <ProblemNote problem={problem} />;
  if (found === null) return <Waiting />;
  return <div class="pad"><pre class="block hex" tabIndex={0}>{hexLines(found, most)}</pre>
    {found.length > most && <button type="button" class="link" onClick={() => show(most * 2)}>
      show more <span class="quiet">({bytes(found.length - most)} are left)</span>
    </button>}</div>;
}

/** Headers are a table, or pairs where a name comes twice. */
export function headerPairs(headers: unknown): [string, string][] {
  const text = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value) ?? "");
  if (Array.isArray(headers)) return headers.map((pair: unknown) => (Array.isArray(pair) ? [text(pair[0]), text(pair[1])] : [text(pair), ""]));
  return typeof headers === "object" && headers !== null ? Object.entries(headers).map(([name, value]) => [name, text(value)]) : [];
}

export function EventHeaders({ headers }: { headers: unknown }) {
  const pairs = headerPairs(headers);
  return <section class="panel"><h2>Headers</h2>
    {pairs.length === 0 ? <p class="empty">None.</p> : <dl class="pairs pad">
      {pairs.map(([name, value], index) => <div key={index}><dt><Said text={name} most={120} /></dt><dd><LongText text={value} most={300} /></dd></div>)}
    </dl>}
  </section>;
}
