// The bar at the top: outbox, how live it is, times, theme, who is in.

import { leave } from "./api/enter.ts";
import type { Me } from "./api/shapes.ts";
import { showKeys } from "./keys/help.tsx";
import { heardAt, linked, paused, whyStale } from "./live/stream.ts";
import { outboxes } from "./live/picture.ts";
import { Icon } from "./parts/icon.tsx";
import { Logo } from "./parts/logo.tsx";
import { When } from "./parts/when.tsx";
import { go, here, link } from "./place/here.ts";
import { type Theme, THEMES, keepChoice, theme, timeMode } from "./show/clock.ts";
import { type TimeMode, TIME_MODES } from "./show/time.ts";

export function TopBar({ who }: { who: Me }) {
  return <header class="top">
    <a class="brand" href={link("overview")} aria-label="Posthaste"><Logo /><span>Posthaste</span></a>
    <OutboxSwitch who={who} />
    <LiveMark />
    <div class="top-end">
      <Choice name="times" label="Times" all={TIME_MODES} words={{ local: "Local time", utc: "UTC", relative: "Relative" }} value={timeMode.value}
        onPick={(mode: TimeMode) => { timeMode.value = mode; keepChoice("times", mode); }} />
      <Choice name="theme" label="Theme" all={THEMES} words={{ system: "System", light: "Light", dark: "Dark" }} value={theme.value}
        onPick={(chosen: Theme) => { theme.value = chosen; keepChoice("theme", chosen); }} />
      <button type="button" class="act act-quiet" onClick={showKeys} aria-label="Keys and help" title="Keys (?)">?</button>
      <span class="who"><bdi class="who-name" title={who.name}>{who.name}</bdi> <span class="quiet">{who.role}</span></span>
      <button type="button" class="act act-quiet" onClick={() => void leave()}>Leave</button>
    </div>
  </header>;
}

interface ChoiceProps<T extends string> {
  readonly name: string;
  readonly label: string;
  readonly all: readonly T[];
  readonly words: Readonly<Record<T, string>>;
  readonly value: T;
  readonly onPick: (value: T) => void;
}

function Choice<T extends string>({ name, label, all, words, value, onPick }: ChoiceProps<T>) {
  return <label class={`choice choice-${name}`}><span class="unseen">{label}</span>
    <select class="select" value={value} onChange={(event) => onPick(event.currentTarget.value as T)}>
      {all.map((one) => <option key={one} value={one}>{words[one]}</option>)}
    </select>
  </label>;
}

function OutboxSwitch({ who }: { who: Me }) {
  const place = here.value;
  const unreachable = new Set(outboxes.value?.outboxes.filter((one) => one.unreachable != null).map((one) => one.outbox));
  if (who.outboxes.length < 2) return <span class="outbox-name"><bdi title={place.outbox}>{place.outbox}</bdi></span>;
  return <label class="choice choice-outbox"><span class="unseen">Outbox</span>
    <select class="select" value={place.outbox} onChange={(event) => go(link(place.page === "event" ? "events" : place.page, "", {}, event.currentTarget.value))}>
      {who.outboxes.map((name) => <option key={name} value={name}>{name}{unreachable.has(name) ? " (cannot be reached)" : ""}</option>)}
    </select>
  </label>;
}

function LiveMark() {
  const how = linked.value;
  const since = heardAt.value === 0 ? null : new Date(heardAt.value).toISOString();
  return <div class="live" role="status">
    <span class={`live-mark live-${how}`} data-live={how} title={how === "stale" ? whyStale.value : undefined}>
      <span class="live-dot" aria-hidden="true" />
      {how === "live" && "live"}
      {how === "connecting" && "connecting…"}
      {how === "paused" && <>paused{since && <span class="live-since"> since <When at={since} as="local" /></span>}</>}
      {how === "stale" && <>stale{since ? <span class="live-since"> since <When at={since} as="local" /></span> : <span class="live-since">: {whyStale.value}</span>}</>}
    </span>
    <button type="button" class="act act-quiet act-small" aria-pressed={paused.value} onClick={() => { paused.value = !paused.value; }}>
      <Icon name={paused.value ? "play" : "pause"} size={12} /><span class="unseen">{paused.value ? "Go on with live news" : "Pause live news"}</span>
    </button>
  </div>;
}
