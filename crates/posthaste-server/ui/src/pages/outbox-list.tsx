// All outboxes, each with its sentence. One that cannot be reached hides no other.

import type { Named } from "../api/shapes.ts";
import { outboxes } from "../live/picture.ts";
import { Chip } from "../parts/chip.tsx";
import { Rows } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { Sentence } from "./health.tsx";
import { link } from "../place/here.ts";
import { number } from "../show/number.ts";

function sum(one: Named, of: "dead" | "deferred" | "backlog"): string {
  return one.sinks === undefined ? "–" : number(one.sinks.reduce((all, sink) => all + sink[of].count, 0));
}

function State({ one }: { one: Named }) {
  if (one.unreachable != null) return <Chip tone="bad">cannot be reached</Chip>;
  const problems = one.problems ?? [];
  if (problems.length === 0) return <Chip tone="ok">well</Chip>;
  return problems.every((problem) => problem.kind === "paused") ? <Chip tone="paused">paused</Chip> : <Chip tone="warn">trouble</Chip>;
}

export function OutboxList() {
  return <section class="panel"><h2>Outboxes</h2>
    <Rows caption="All outboxes" rows={outboxes.value?.outboxes ?? []} keyOf={(one) => one.outbox} open={(one) => link("overview", "", {}, one.outbox)} columns={[
      { head: "Outbox", as: "fit", cell: (one) => <a href={link("overview", "", {}, one.outbox)}><Said text={one.outbox} most={60} /></a> },
      { head: "State", as: "fit", cell: (one) => <State one={one} /> },
      { head: "What is wrong", as: "main", cell: (one) => <Sentence text={one.unreachable ?? one.problems?.[0]?.sentence ?? "nothing"} /> },
      { head: "Backlog", as: "num", cell: (one) => sum(one, "backlog") },
      { head: "Deferred", as: "num", cell: (one) => sum(one, "deferred") },
      { head: "Dead", as: "num", cell: (one) => sum(one, "dead") },
    ]} />
  </section>;
}
