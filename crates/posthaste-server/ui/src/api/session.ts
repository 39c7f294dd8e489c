// The session of this tab. Its secret is kept for the tab alone, and never in a cookie: that would be sent to
// whatever else serves a port of the same host.

import { signal } from "@preact/signals";

const PLACE = "posthaste.session";

function kept(): string | null {
  try {
    return sessionStorage.getItem(PLACE);
  } catch {
    return null;
  }
}

/** What is sent as `Authorization`; `null`: nobody has entered. */
export const secret = signal<string | null>(kept());

/** Why nobody is in, if somebody was. */
export const ended = signal<string | null>(null);

export function keep(session: string | null): void {
  secret.value = session;
  try {
    if (session === null) sessionStorage.removeItem(PLACE);
    else sessionStorage.setItem(PLACE, session);
  } catch {
    // Without a place to keep it the session ends with the next load.
  }
}

export function endSession(why: string | null): void {
  ended.value = why;
  keep(null);
}
