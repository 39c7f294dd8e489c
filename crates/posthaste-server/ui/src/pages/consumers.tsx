// Consumers: how far each is behind, and one of them in full.

import { useEffect } from "preact/hooks";
import type { Consumers, ShownConsumer } from "../api/shapes.ts";
import { consumers } from "../live/picture.ts";
import { Chip } from "../parts/chip.tsx";
import { useLook } from "../parts/look.ts";
import { ProblemNote } from "../parts/problem-note.tsx";
import { Rows, Waiting } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { here, link } from "../place/here.ts";
import { nowMs } from "../show/clock.ts";
import { count, millis, number, span } from "../show/number.ts";
import { instant } from "../show/time.ts";
import { OneConsumer } from "./consumer-one.tsx";
import { readReport } from "./consumer-report.ts";
import { PageHead } from "./page-head.tsx";

export function ConsumersPage() {
  const look = useLook<Consumers>(consumers.value === null ? "consumers" : null);
  const found = consumers.value ?? look.data;
  const name = here.value.of;
  useEffect(() => { if (name !== "") scrollTo(0, 0); }, [name]);
  const one = found?.consumers.find((consumer) => consumer.consumer === name);
  if (found === null) return <><PageHead title="Consumers" />{look.problem ? <ProblemNote problem={look.problem} again={look.again} /> : <Waiting />}</>;
  if (name !== "") {
    return one !== undefined ? <OneConsumer key={name} consumer={one} />
      : <><PageHead title="Consumers" about={<a href={link("consumers")}>All consumers</a>} /><p class="empty">There is no consumer <b><bdi>{name}</bdi></b> here, or your token is not for it.</p></>;
  }
  return <>
    <PageHead title="Consumers" about="Whoever takes messages from a broker and handles each once, in a transaction of the database that has its inbox." />
    {Object.entries(found.unreachable).map(([outbox, why]) => <ProblemNote key={outbox} problem={{ status: 0, code: outbox, detail: why, events: "", do: "Consumers whose inbox is there are not shown." }} />)}
    <section class="panel">
      <Rows caption="Consumers" rows={found.consumers} keyOf={(consumer) => consumer.consumer} open={(consumer) => link("consumers", consumer.consumer)}
        empty="No consumers: none has its inbox in these databases." columns={[
          { head: "Consumer", as: "wide", cell: (consumer) => <a href={link("consumers", consumer.consumer)}><Said text={consumer.consumer} most={80} /></a> },
          { head: "State", as: "main", cell: (consumer) => <ConsumerState consumer={consumer} /> },
          { head: "Lag", as: "num", cell: (consumer) => number(lagOf(consumer)) },
          { head: "Behind", as: "num", cell: (consumer) => span(behindOf(consumer)) },
          { head: "p99", as: "num", cell: (consumer) => millis(lateBy(consumer, "p99Ms")) },
          { head: "Partitions", as: "num", cell: (consumer) => number(consumer.partitions.length) },
          { head: "Deferred", as: "num", cell: (consumer) => count(consumer.deferred) },
          { head: "Dead", as: "num", cell: (consumer) => consumer.dead.count > 0 ? <span class="tone-bad">{count(consumer.dead)}</span> : "0" },
          { head: "Inbox in", as: "fit", cell: (consumer) => <Said text={consumer.outbox} most={40} /> },
        ]} />
    </section>
  </>;
}

/** Messages behind, of all partitions; `null` if nobody knows. */
export function lagOf(consumer: ShownConsumer): number | null {
  const known = consumer.partitions.flatMap(({ lag }) => (lag == null ? [] : [lag]));
  return known.length === 0 ? null : known.reduce((sum, lag) => sum + lag, 0);
}

/** How old the last handled message is where others wait behind it: nobody waits for longer. */
export function secondsBehind(partition: ShownConsumer["partitions"][number]): number | null {
  if (partition.lag == null) return null;
  if (partition.lag === 0) return 0;
  const at = instant(partition.position_time);
  return Number.isFinite(at) ? Math.max(0, (nowMs() - at) / 1_000) : null;
}

export function behindOf(consumer: ShownConsumer): number | null {
  const known = consumer.partitions.map(secondsBehind).filter((seconds): seconds is number => seconds !== null);
  return known.length === 0 ? null : Math.max(...known);
}

/** How late effects are, by the slowest process that lives: a mean of quantiles is none. */
export function lateBy(consumer: ShownConsumer, which: "p50Ms" | "p99Ms"): number | null {
  const known = consumer.processes.flatMap(({ seen_at: at, report }) => (isAlive(at) ? readReport(report)?.[which] ?? [] : []));
  return known.length === 0 ? null : Math.max(...known);
}

/** A process that was silent for so long is no reason to say that somebody runs. */
const SILENT_MS = 60_000;

export function isAlive(seenAt: string): boolean {
  return nowMs() - instant(seenAt) < SILENT_MS;
}

export function ConsumerState({ consumer }: { consumer: ShownConsumer }) {
  if (consumer.paused) return <Chip tone="paused">paused</Chip>;
  const alive = consumer.processes.filter((process) => isAlive(process.seen_at));
  if (alive.length === 0) return <Chip tone={lagOf(consumer) === 0 ? "quiet" : "warn"}>no process</Chip>;
  const reports = alive.map((process) => readReport(process.report));
  const away = [...new Set(reports.flatMap((report) => report?.away ?? []))];
  const stopped = consumer.partitions.filter((partition) => partition.stopped != null).length;
  const bad = reports.find((report) => report !== null && !report.ready);
  return <>
    {stopped > 0 && <><Chip tone="bad">{number(stopped)} stopped</Chip> </>}
    {away.length > 0 ? <><Chip tone="bad" icon="warn">waits for</Chip> <Said text={away.join(", ")} most={80} /></> : bad ? <><Chip tone="warn">not ready</Chip> <Said text={bad.why} most={120} /></> : stopped === 0 && <Chip tone="ok">well</Chip>}
  </>;
}
