// Looks at the API from a page: one answer that is kept up to date, or a list that grows page by page.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { type Problem, ask, problemIn } from "../api/request.ts";
import { acted } from "./dialog.tsx";

export interface Look<T> {
  readonly data: T | null;
  readonly problem: Problem | null;
  readonly isAsking: boolean;
  readonly again: () => void;
}

/** Looks that follow a change of the stream come no faster than this. */
const AGAIN_MS = 1_500;

/** The answer of a path. When `beat` changes it is asked once more, and the old answer stays until then. */
export function useLook<T>(where: string | null, beat: unknown = null): Look<T> {
  const [found, keep] = useState<{ of: string | null; data: T | null; problem: Problem | null; isAsking: boolean }>({ of: null, data: null, problem: null, isAsking: true });
  const running = useRef<AbortController | null>(null);
  const asked = useRef(0);
  const again = useCallback(() => {
    running.current?.abort();
    if (where === null) return;
    const abort = new AbortController();
    running.current = abort;
    asked.current = Date.now();
    keep((before) => ({ ...(before.of === where ? before : { data: null, problem: null }), of: where, isAsking: true }));
    ask<T>(where, { signal: abort.signal }).then(
      (data) => { if (!abort.signal.aborted) keep({ of: where, data, problem: null, isAsking: false }); },
      (error: unknown) => {
        if (!abort.signal.aborted) keep((before) => ({ ...before, problem: problemIn(error), isAsking: false }));
      },
    );
  }, [where]);
  useEffect(() => {
    again();
    return () => running.current?.abort();
  }, [again]);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return undefined;
    }
    const wait = Math.max(0, AGAIN_MS - (Date.now() - asked.current));
    const timer = setTimeout(again, wait);
    return () => clearTimeout(timer);
  }, [beat]);
  const isMine = found.of === where;
  return { data: isMine ? found.data : null, problem: isMine ? found.problem : null, isAsking: !isMine || found.isAsking, again };
}

export interface Pages<T, R> {
  readonly rows: readonly R[];
  /** The last answer, for what stands beside the rows. */
  readonly last: T | null;
  readonly problem: Problem | null;
  readonly isAsking: boolean;
  readonly hasMore: boolean;
  readonly more: () => void;
  readonly again: () => void;
}

/** Rows of a list, as many pages of it as were asked for. */
export function usePages<T extends { next?: string | null | undefined }, R>(
  where: string | null, rowsOf: (answer: T) => readonly R[], beat: unknown = null,
): Pages<T, R> {
  // Once somebody went further than the first page, news must not take the rows from under their eyes.
  const held = useRef(beat);
  const isFurther = useRef(false);
  if (!isFurther.current) held.current = beat;
  // One's own act is looked for, however far one went.
  const first = useLook<T>(where, `${String(held.current)} ${acted.value}`);
  const [rest, keep] = useState<{ of: T | null; rows: readonly R[]; last: T | null; problem: Problem | null; isAsking: boolean }>({ of: null, rows: [], last: null, problem: null, isAsking: false });
  // Pages that follow belong to one first page: when that is asked anew, they begin anew.
  const mine = rest.of === first.data ? rest : null;
  const last = mine?.last ?? first.data;
  isFurther.current = mine !== null && mine.rows.length > 0;
  const more = (): void => {
    const next = last?.next;
    const head = first.data;
    if (where === null || !next || head === null || mine?.isAsking) return;
    const before = mine?.rows ?? [];
    keep({ of: head, rows: before, last, problem: null, isAsking: true });
    ask<T>(`${where}${where.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(next)}`).then(
      (page) => keep((now) => (now.of === head ? { of: head, rows: [...before, ...rowsOf(page)], last: page, problem: null, isAsking: false } : now)),
      (error: unknown) => keep((now) => (now.of === head ? { ...now, problem: problemIn(error), isAsking: false } : now)),
    );
  };
  return {
    rows: first.data === null ? [] : [...rowsOf(first.data), ...(mine?.rows ?? [])],
    last, problem: first.problem ?? mine?.problem ?? null,
    isAsking: first.isAsking || (mine?.isAsking ?? false),
    hasMore: Boolean(last?.next), more, again: first.again,
  };
}
