// What a job does, and to what, as POST …/jobs takes it. Members that say nothing are left out: the API refuses
// what it does not know.

export interface DeadFilter {
  readonly all?: boolean;
  readonly ids?: readonly string[];
  readonly sink?: string;
  readonly topic?: string;
  readonly key?: string;
  readonly code?: string;
  readonly fingerprint?: string;
  readonly since?: string;
  readonly until?: string;
}

export interface DeferredFilter {
  readonly all?: boolean;
  readonly ids?: readonly string[];
  readonly sink?: string;
  readonly topic?: string;
  readonly key?: string;
  readonly destination?: string;
  readonly reason?: string;
  readonly code?: string;
}

export interface EventFilter {
  readonly topic?: string;
  readonly key?: string;
  readonly since?: string;
  readonly until?: string;
  readonly from_seq?: number;
  readonly to_seq?: number;
}

export type Plan =
  | { readonly kind: "dead.replay" | "dead.discard"; readonly filter: DeadFilter }
  | { readonly kind: "deferred.retry"; readonly filter: DeferredFilter }
  | { readonly kind: "events.replay"; readonly sink: string; readonly filter: EventFilter }
  | { readonly kind: "consumer.replay" | "consumer.discard"; readonly consumer: string; readonly filter: DeadFilter }
  | { readonly kind: "consumer.deferred_retry"; readonly consumer: string; readonly filter: DeferredFilter };

/** A filter that names nothing means everything, and that has to be said out loud. */
export function outLoud<F extends { readonly all?: boolean }>(filter: F): F {
  const says = Object.entries(filter).some(([, value]) => (Array.isArray(value) ? value.length > 0 : value != null));
  return says ? filter : { ...filter, all: true };
}

/** The word of a kind's act, for buttons and titles. */
export function actOf(kind: string): string {
  if (kind.endsWith("discard")) return "Discard";
  return kind.endsWith("retry") ? "Retry" : "Replay";
}
