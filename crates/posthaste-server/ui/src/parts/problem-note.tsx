// Why something was not answered: what happened, what it means for the events, what to do.

import type { Problem } from "../api/request.ts";
import { Icon } from "./icon.tsx";
import { LongText } from "./said.tsx";

export function ProblemNote({ problem, again }: { problem: Problem; again?: () => void }) {
  return <div class="note note-bad" role="alert">
    <Icon name="warn" />
    <div class="note-text">
      <p><LongText text={problem.detail} /> <code class="code quiet">{problem.code}</code></p>
      {(problem.events || problem.do) && <p class="quiet">{problem.events} {problem.do}</p>}
    </div>
    {again && <button type="button" class="act act-plain act-small" onClick={again}>Ask again</button>}
  </div>;
}

/** Why a page has no meaning here. */
export function LackNote({ why }: { why: string }) {
  return <div class="note note-quiet"><Icon name="empty" /><div class="note-text"><p><LongText text={why} /></p></div></div>;
}
