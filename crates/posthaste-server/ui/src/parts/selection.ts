// A selection that follows its list.

import { type Signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Pages } from "./look.ts";
import { type Picked, pruned } from "./picked.ts";

export type Selection<R> = Signal<Picked<R>>;

/** `of`: the filter. Under another one nothing is selected. */
export function useSelection<R>(of: string, list: Pages<unknown, R>, keyOf: (row: R) => string): Selection<R> {
  const selection = useSignal<Picked<R>>(new Map());
  const before = useRef(of);
  if (before.current !== of) {
    before.current = of;
    selection.value = new Map();
  }
  useEffect(() => {
    if (selection.peek().size > 0 && !list.isAsking && list.problem === null) selection.value = pruned(selection.peek(), new Set(list.rows.map(keyOf)), list.hasMore);
  });
  return selection;
}
