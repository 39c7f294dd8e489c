// Now, by the clock of the store: a browser's own may be minutes off, and "2 min ago" would lie.

import { signal } from "@preact/signals";
import { type TimeMode, TIME_MODES, instant } from "./time.ts";

let ahead = 0;

export function noteClock(storeNow: string | null | undefined): void {
  const at = instant(storeNow);
  if (Number.isFinite(at)) ahead = at - Date.now();
}

export const nowMs = (): number => Date.now() + ahead;

/** Moves once a second while the tab is seen. */
export const second = signal(Date.now());
setInterval(() => {
  if (document.visibilityState === "visible") second.value = nowMs();
}, 1_000);

function kept<T extends string>(name: string, all: readonly T[], otherwise: T): T {
  try {
    const found = localStorage.getItem(`posthaste.${name}`) as T | null;
    return found !== null && all.includes(found) ? found : otherwise;
  } catch {
    return otherwise;
  }
}

export function keepChoice(name: string, value: string): void {
  try {
    localStorage.setItem(`posthaste.${name}`, value);
  } catch {
    // The choice holds for this tab, then.
  }
}

export const timeMode = signal<TimeMode>(kept("times", TIME_MODES, "local"));

export type Theme = "system" | "light" | "dark";
export const THEMES: readonly Theme[] = ["system", "light", "dark"];
export const theme = signal<Theme>(kept("theme", THEMES, "system"));
