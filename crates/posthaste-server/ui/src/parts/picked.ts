// What is selected in a list. It is kept by itself: a row that slides off the page as others come stays selected. Pure.

export type Picked<R> = ReadonlyMap<string, R>;

/** Without those that are gone: of a list that is there to its end, what it lacks is. */
export function pruned<R>(picked: Picked<R>, keys: ReadonlySet<string>, hasMore: boolean): Picked<R> {
  return hasMore || [...picked.keys()].every((key) => keys.has(key)) ? picked : new Map([...picked].filter(([key]) => keys.has(key)));
}

/** An event has a letter, or waits, at each of several sinks: a job that names ids is for one of them. */
export function ofOneSink(picked: Picked<{ readonly id: string; readonly sink: string }>): { ids: string[]; sink: string } | null {
  const all = [...picked.values()];
  const sink = all[0]?.sink;
  return sink === undefined || all.some((one) => one.sink !== sink) ? null : { ids: all.map(({ id }) => id), sink };
}

export const SEVERAL_SINKS = "The selected are of several sinks: set the filter to one of them first.";
