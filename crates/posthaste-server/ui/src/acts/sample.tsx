// One of those that a job would touch. Its shape is that of the list that it is from.

import { Said } from "../parts/said.tsx";
import { number } from "../show/number.ts";

export function Sample({ sample }: { sample: unknown }) {
  if (typeof sample !== "object" || sample === null) return <Said text={String(sample)} />;
  const all = sample as Record<string, unknown>;
  const text = (name: string): string | null => (typeof all[name] === "string" && all[name] !== "" ? (all[name] as string) : null);
  const topic = text("topic");
  const seq = typeof all["seq"] === "number" ? all["seq"] : null;
  const code = text("error_code");
  const key = text("key");
  const id = text("id") ?? text("letter");
  return <span class="sample">
    {seq !== null ? <span class="num">{number(seq)}</span> : id && <Said text={id} most={36} />}
    {topic && <Said text={topic} most={60} />}
    {key && <span class="quiet">key <Said text={key} most={40} /></span>}
    {code && <code class="code"><Said text={code} most={40} /></code>}
  </span>;
}
