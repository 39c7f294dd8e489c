// What came before and after an event with the same key. Events of one key are delivered in this order.

import { path, query } from "../api/request.ts";
import type { Events, LogEvent } from "../api/shapes.ts";
import { useLook } from "../parts/look.ts";
import { Rows } from "../parts/rows.tsx";
import { Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { link } from "../place/here.ts";
import { number } from "../show/number.ts";

/** The log is searched forward alone: for what came before, this part of it is looked through. */
const BEHIND = 2_000;
const SHOWN = 5;

export function SameKey({ event, outbox }: { event: LogEvent; outbox: string }) {
  const isSeen = event.key != null && event.key !== "(hidden)";
  const where = (filters: object): string | null => (isSeen ? path`outboxes/${outbox}/events` + query({ key: event.key, ...filters }) : null);
  const before = useLook<Events>(event.seq > 1 ? where({ from_seq: Math.max(1, event.seq - BEHIND), to_seq: event.seq - 1, limit: 1_000 }) : null);
  const after = useLook<Events>(where({ from_seq: event.seq + 1, limit: SHOWN }));
  if (!isSeen) return null;
  const rows = [...(before.data?.events ?? []).slice(-SHOWN), event, ...(after.data?.events ?? []).slice(0, SHOWN)];
  return <section class="panel"><h2>Same key</h2>
    <Rows caption="Events of the same key, around this one" rows={rows} keyOf={(one) => String(one.seq)} open={(one) => link("event", String(one.seq))} columns={[
      { head: "Number", as: "num", cell: (one) => one.seq === event.seq ? <b>{number(one.seq)}</b> : <a href={link("event", String(one.seq))}>{number(one.seq)}</a> },
      { head: "Topic", as: "main", cell: (one) => <><Said text={one.topic} most={100} />{one.seq === event.seq && <span class="quiet"> this one</span>}</> },
      { head: "Appended", as: "fit", cell: (one) => <When at={one.appended_at} /> },
    ]} />
  </section>;
}
