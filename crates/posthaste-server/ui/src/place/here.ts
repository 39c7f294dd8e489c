// Where this tab is. Pages read it; links and filters change it by the browser's own address.

import { batch, computed, signal } from "@preact/signals";
import { type Filters, type Place, changed, codeOf, readPlace, writePlace } from "./place.ts";

const address = signal("");

/** The code of a link that was opened here. It is used up by its first use, and must not stay where others read it. */
export const code = signal<string | null>(null);

/** Takes the address over; a code is taken out of it. */
function take(): void {
  const found = codeOf(location.hash);
  if (found !== null) {
    code.value = found;
    history.replaceState(null, "", address.peek() || "#/");
  }
  address.value = location.hash;
}

/** The page's own name, so that an address without one is not a place. */
export const here = computed(() => readPlace(address.value));

export function watchAddress(): void {
  take();
  addEventListener("hashchange", () => {
    const before = readPlace(address.peek());
    batch(take);
    const after = here.peek();
    // A new page begins at its top; a changed filter leaves the eyes where they are.
    if (before.page !== after.page || before.of !== after.of) scrollTo(0, 0);
  });
}

export function link(page: string, of = "", filters: Filters = {}, outbox?: string): string {
  return writePlace({ outbox: outbox ?? here.value.outbox, page, of, filters });
}

export function go(to: string): void {
  location.hash = to;
}

/** Goes to a place that takes the present one's stead: back does not lead to it. */
export function goInstead(to: string): void {
  history.replaceState(null, "", to);
  address.value = location.hash;
}

/** Changes filters of this page. */
export function filter(change: Filters): void {
  const now: Place = here.peek();
  go(writePlace({ ...now, filters: changed(now.filters, change) }));
}
