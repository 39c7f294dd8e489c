// What every dialog that acts has: a reason, one request at a time, and an end of its own.

import type { VNode } from "preact";
import { useRef, useState } from "preact/hooks";
import { type Ask, type Problem, ask, problemIn } from "../api/request.ts";
import { acted, closerOf } from "../parts/dialog.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { ReasonField } from "./fields.tsx";

interface Sending {
  readonly reason: string;
  readonly isTried: boolean;
  readonly isSending: boolean;
  /** Why it was refused. */
  readonly note: VNode | null;
  readonly field: (first?: boolean) => VNode;
  /** Sends, if all is there. A second press while it is under way is none. */
  readonly send: <T>(isReady: boolean, where: string, how: Ask & { readonly body: object }, done: (answer: T) => void) => void;
}

export function useSending(): Sending {
  const [reason, setReason] = useState("");
  const [isTried, setTried] = useState(false);
  const [isSending, setSending] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const isUnderWay = useRef(false);
  const [close] = useState(closerOf);
  const bare = reason.trim();
  return {
    reason: bare, isTried, isSending,
    note: problem && <ProblemNote problem={problem} />,
    field: (first = false) => <ReasonField value={reason} onText={setReason} wrong={isTried && bare === "" ? "Say why: it stands in the audit." : null} first={first} />,
    send: <T,>(isReady: boolean, where: string, how: Ask & { readonly body: object }, done: (answer: T) => void) => {
      setTried(true);
      if (!isReady || bare === "" || isUnderWay.current) return;
      isUnderWay.current = true;
      setSending(true);
      setProblem(null);
      ask<T>(where, { ...how, body: { ...how.body, reason: bare } }).then(
        (answer) => { close(); acted.value += 1; done(answer); },
        (error: unknown) => { isUnderWay.current = false; setSending(false); setProblem(problemIn(error)); },
      );
    },
  };
}
