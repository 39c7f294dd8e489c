// Where one can go, with how much is there.

import { computed } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { consumers, jobs, outbox } from "./live/picture.ts";
import { PAGES, type PageName } from "./pages/all.tsx";
import { Icon } from "./parts/icon.tsx";
import { here, link } from "./place/here.ts";
import { number } from "./show/number.ts";

interface Badge {
  readonly text: string;
  readonly means: string;
  readonly tone: "bad" | "warn" | "plain";
}

function sum(of: "dead" | "deferred"): Badge | null {
  const sinks = outbox.value?.sinks ?? [];
  const many = sinks.reduce((all, sink) => all + sink[of].count, 0);
  const isExact = sinks.every((sink) => sink[of].exact);
  if (many === 0) return null;
  const tone = of === "dead" ? "bad" : "plain";
  return { text: `${isExact ? "" : "~"}${number(many)}`, means: of === "dead" ? "dead letters" : "deferred", tone };
}

const badges = computed((): Partial<Record<PageName, Badge | null>> => {
  const open = (jobs.value?.jobs ?? []).filter(({ state }) => state === "queued" || state === "running" || state === "paused").length;
  const theirs = (consumers.value?.consumers ?? []).reduce((all, one) => all + one.dead.count, 0);
  return {
    dead: sum("dead"),
    deferred: sum("deferred"),
    jobs: open === 0 ? null : { text: number(open), means: "not over", tone: "plain" },
    consumers: theirs === 0 ? null : { text: number(theirs), means: "dead letters", tone: "bad" },
  };
});

export function NavBar() {
  const place = here.value;
  const now = place.page === "event" ? "events" : place.page;
  const list = useRef<HTMLUListElement>(null);
  // On a narrow screen the names are a strip that scrolls: the page that is shown is seen in it.
  useEffect(() => {
    const link = list.current?.querySelector<HTMLElement>("[aria-current]");
    if (list.current && link) list.current.scrollLeft = link.offsetLeft - (list.current.clientWidth - link.offsetWidth) / 2;
  }, [now, badges.value]);
  return <nav class="nav" aria-label="Pages">
    <ul ref={list}>
      {PAGES.filter((page) => !page.isInner).map((page) => {
        const badge = badges.value[page.name] ?? null;
        return <li key={page.name}><a class="nav-link" href={link(page.name)} aria-current={page.name === now ? "page" : undefined}>
          {page.icon && <Icon name={page.icon} size={15} />}
          <span class="nav-name">{page.title}</span>
          {badge && <span class={`badge badge-${badge.tone}`}>{badge.text}<span class="unseen"> {badge.means}</span></span>}
        </a></li>;
      })}
    </ul>
  </nav>;
}
