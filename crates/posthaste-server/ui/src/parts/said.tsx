// Texts of others, as text. Each is isolated, so that its direction turns nothing beside it, and a long one is
// cut until somebody wants all of it.

import { useState } from "preact/hooks";
import { beginning, visible } from "../show/text.ts";
import { number } from "../show/number.ts";

/** So much more is shown with each press: a megabyte at once would stop the tab for a while. */
const STEP = 20_000;

export function Said({ text, most = 200, class: className }: { text: string; most?: number; class?: string }) {
  return <bdi class={`said ${className ?? ""}`} title={text.length > most ? `${number(text.length)} characters` : undefined}>
    {visible(beginning(text, most))}{text.length > most ? "…" : ""}
  </bdi>;
}

/** A long text that can be opened. */
export function LongText({ text, most = 400, block = false }: { text: string; most?: number; block?: boolean }) {
  const [shown, show] = useState(most);
  const isCut = text.length > shown;
  const body = visible(beginning(text, shown)) + (isCut ? "…" : "");
  return <>
    {block ? <pre class="block" tabIndex={0}><bdi>{body}</bdi></pre> : <bdi class="said wrap">{body}</bdi>}
    {isCut && <button type="button" class="link" onClick={() => show(shown + STEP)}>
      show more <span class="quiet">({number(text.length - shown)} characters are left)</span>
    </button>}
  </>;
}

export function Code({ text, most = 80 }: { text: string; most?: number }) {
  return <code class="code"><Said text={text} most={most} /></code>;
}
