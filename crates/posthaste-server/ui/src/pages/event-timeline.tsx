// The timeline of an event.

import { useEffect, useState } from "preact/hooks";
import { ask, path, query } from "../api/request.ts";
import type { Attempt, DeferredPage, ShownLife } from "../api/shapes.ts";
import { Icon, type IconName } from "../parts/icon.tsx";
import { Code, LongText, Said } from "../parts/said.tsx";
import { When } from "../parts/when.tsx";
import { span } from "../show/number.ts";
import { type MomentTone, folded, moments } from "./timeline.ts";

const ICONS: Readonly<Record<MomentTone, IconName>> = { begin: "play", ok: "ok", bad: "bad", dead: "dead", act: "overview", wait: "clock" };

/** The attempts of what waits are in the list of what waits: it is asked for this event's place there. */
function useAttempts(life: ShownLife, outbox: string): ReadonlyMap<string, readonly Attempt[]> {
  const [found, keep] = useState<ReadonlyMap<string, readonly Attempt[]>>(new Map());
  useEffect(() => {
    const abort = new AbortController();
    const key = life.event.key === "(hidden)" ? null : life.event.key;
    const looks = life.sinks.filter((sink) => sink.waiting != null).map(async ({ sink, waiting }) => {
      const where = path`outboxes/${outbox}/deferred` + query({ sink, key, reason: waiting?.reason, destination: waiting?.destination, limit: 200 });
      const page = await ask<DeferredPage>(where, { signal: abort.signal });
      const mine = page.deferred.find((event) => event.seq === life.event.seq);
      return [sink, mine?.history ?? []] as const;
    });
    // Without them the timeline has the last failure alone.
    Promise.all(looks).then((all) => keep(new Map(all)), () => undefined);
    return () => abort.abort();
  }, [life]);
  return found;
}

export function Timeline({ life, outbox }: { life: ShownLife; outbox: string }) {
  const steps = folded(moments(life, useAttempts(life, outbox)));
  return <ol class="timeline">
    {steps.map((step, index) => "gapMs" in step
      ? <li key={index} class="moment gap"><span class="gap-words">{span(step.gapMs / 1_000)}</span></li>
      : <li key={index} class={`moment moment-${step.tone}`}>
        <span class="moment-dot"><Icon name={ICONS[step.tone]} size={12} /></span>
        <div class="moment-text">
          <p><span class="moment-when">{step.said == null ? "now" : <When at={step.said} />}</span>
            {step.sink !== null && <b><Said text={step.sink} most={40} /></b>} <Said text={step.text} most={400} /> {step.code && <Code text={step.code} />}</p>
          {step.error && <p class="quiet"><LongText text={step.error} most={300} /></p>}
        </div>
      </li>)}
  </ol>;
}
