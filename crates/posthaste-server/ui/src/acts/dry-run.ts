// What an act would do, as the server says it: a dialog shows that before anybody sends it.

import { useEffect, useState } from "preact/hooks";
import { type Ask, ask, problemIn } from "../api/request.ts";

/** Whoever still types is not asked for. */
const PAUSE_MS = 300;

/** The sentence of the answer, or why there is none; `null` while it is not known. */
export function useDryRun(where: string, method: NonNullable<Ask["method"]>, body: object | null): string | null {
  const wanted = body && JSON.stringify(body);
  const [found, keep] = useState<readonly [of: string | null, words: string]>([null, ""]);
  useEffect(() => {
    if (body === null) return undefined;
    const abort = new AbortController();
    const say = (words: string): void => { if (!abort.signal.aborted) keep([wanted, words]); };
    const timer = setTimeout(() => {
      ask<{ done: string }>(where, { method, body: { ...body, dry_run: true }, signal: abort.signal })
        .then(({ done }) => say(done), (error: unknown) => say(problemIn(error).detail));
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [wanted]);
  return found[0] === wanted ? found[1] : null;
}
