// What a cause of waiting is called in a filter. Pure.

import type { DeferredFilter } from "../api/plan.ts";

export interface WaitingCause {
  readonly sink?: string;
  readonly reason: string;
  readonly destination?: string;
  readonly error_code?: string | null | undefined;
}

export function causeFilter({ sink, reason, destination, error_code: code }: WaitingCause): DeferredFilter {
  return { ...(sink === undefined ? {} : { sink }), reason, ...(destination ? { destination } : {}), ...(code == null ? {} : { code }) };
}

/** A filter cannot say "without a code": one of a cause that has none is that of its siblings, too. */
export function whyTooWide(cause: WaitingCause, all: readonly WaitingCause[]): string | null {
  const { sink, reason, destination, code } = causeFilter(cause);
  const many = all.filter((one) => one.sink === sink && one.reason === reason
    && (destination === undefined || one.destination === destination) && (code === undefined || one.error_code === code)).length;
  return many > 1 ? "No filter tells it from other causes here: select its rows below." : null;
}
