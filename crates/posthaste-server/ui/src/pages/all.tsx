// All pages, once: the bar, the titles and the addresses are made from this table.

import type { ComponentType } from "preact";
import type { IconName } from "../parts/icon.tsx";
import { AuditPage } from "./audit.tsx";
import { ConsumersPage } from "./consumers.tsx";
import { DeadPage } from "./dead.tsx";
import { DeferredPage } from "./deferred.tsx";
import { EventPage } from "./event.tsx";
import { EventsPage } from "./events.tsx";
import { JobsPage } from "./jobs.tsx";
import { LanesPage } from "./lanes.tsx";
import { OverviewPage } from "./overview.tsx";
import { SettingsPage } from "./settings.tsx";

export type PageName = "overview" | "dead" | "deferred" | "events" | "event" | "lanes" | "consumers" | "jobs" | "audit" | "settings";

interface PageEntry {
  readonly name: PageName;
  readonly title: string;
  readonly icon?: IconName;
  readonly Page: ComponentType;
  /** Reached from another page, not from the bar. */
  readonly isInner?: boolean;
}

export const PAGES: readonly PageEntry[] = [
  { name: "overview", title: "Overview", icon: "overview", Page: OverviewPage },
  { name: "dead", title: "Dead letters", icon: "dead", Page: DeadPage },
  { name: "deferred", title: "Deferred", icon: "deferred", Page: DeferredPage },
  { name: "events", title: "Events", icon: "events", Page: EventsPage },
  { name: "event", title: "Event", Page: EventPage, isInner: true },
  { name: "lanes", title: "Lanes and relays", icon: "lanes", Page: LanesPage },
  { name: "consumers", title: "Consumers", icon: "consumers", Page: ConsumersPage },
  { name: "jobs", title: "Jobs", icon: "jobs", Page: JobsPage },
  { name: "audit", title: "Audit", icon: "audit", Page: AuditPage },
  { name: "settings", title: "Settings", icon: "settings", Page: SettingsPage },
];

export function pageNamed(name: string): PageEntry | undefined {
  return PAGES.find((page) => page.name === name);
}
