// Filters of a page. Each is in the address; a text goes there when it is finished, not with each letter.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { filter, here } from "../place/here.ts";
import { nowMs } from "../show/clock.ts";
import { readTime } from "../show/time.ts";
import { Icon } from "./icon.tsx";

export function FilterBar({ children, names }: { children: ComponentChildren; names: readonly string[] }) {
  const set = names.filter((name) => here.value.filters[name] !== undefined);
  return <form class="filters" role="search" onSubmit={(event) => event.preventDefault()}>
    {children}
    {set.length > 0 && <button type="button" class="act act-quiet act-small" onClick={() => filter(Object.fromEntries(set.map((name) => [name, ""])))}>
      <Icon name="bad" size={11} />Clear
    </button>}
  </form>;
}

interface TextFilterProps {
  readonly name: string;
  readonly label: string;
  readonly hint?: string;
  readonly why?: string | null;
  /** The text as it goes into the address, or `undefined` if it is none. */
  readonly read?: (text: string) => string | undefined;
  readonly wrong?: string;
  readonly wide?: boolean;
}

export function TextFilter({ name, label, hint, why = null, read = (text) => text.trim(), wrong, wide = false }: TextFilterProps) {
  const now = here.value.filters[name] ?? "";
  const [text, setText] = useState(now);
  const [isWrong, setWrong] = useState(false);
  useEffect(() => {
    setText(now);
    setWrong(false);
  }, [now]);
  const finish = (): void => {
    if (text === now) return setWrong(false);
    const value = read(text);
    setWrong(value === undefined);
    if (value !== undefined && value !== now) filter({ [name]: value });
  };
  return <label class={`filter${wide ? " filter-wide" : ""}`}><span class="filter-name">{label}</span>
    <input class="input" type="text" name={name} value={text} placeholder={hint} disabled={why !== null} title={why ?? (isWrong ? wrong : undefined)} data-filter
      aria-invalid={isWrong} autocomplete="off" spellcheck={false} onInput={(event) => setText(event.currentTarget.value)}
      onBlur={finish} onKeyDown={(event) => { if (event.key === "Enter") finish(); }} />
  </label>;
}

interface PickFilterProps {
  readonly name: string;
  readonly label: string;
  readonly all: readonly (string | readonly [value: string, words: string])[];
  readonly any?: string;
}

export function PickFilter({ name, label, all, any = "all" }: PickFilterProps) {
  const now = here.value.filters[name] ?? "";
  const pairs = all.map((one) => (typeof one === "string" ? ([one, one] as const) : one));
  const isKnown = now === "" || pairs.some(([value]) => value === now);
  return <label class="filter"><span class="filter-name">{label}</span>
    <select class="select" name={name} value={now} onChange={(event) => filter({ [name]: event.currentTarget.value })}>
      <option value="">{any}</option>
      {!isKnown && <option value={now}>{now}</option>}
      {pairs.map(([value, words]) => <option key={value} value={value}>{words}</option>)}
    </select>
  </label>;
}

/** A time: a distance is turned into an instant, so that a link means the same tomorrow. */
export function TimeFilter({ name, label }: { name: string; label: string }) {
  const read = (text: string): string | undefined => {
    const at = readTime(text, nowMs());
    return at === null ? "" : at;
  };
  return <TextFilter name={name} label={label} hint="2h, or a date" read={read} wrong="A time, as 2026-11-15T08:00:00Z, or 2h for two hours ago." />;
}
