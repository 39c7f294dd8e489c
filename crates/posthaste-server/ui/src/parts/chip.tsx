// A word about how something is, with its drawing and its colour.

import type { ComponentChildren } from "preact";
import { Icon, type IconName } from "./icon.tsx";

export type Tone = "ok" | "warn" | "bad" | "paused" | "busy" | "quiet";

const ICONS: Record<Tone, IconName> = { ok: "ok", warn: "warn", bad: "bad", paused: "pause", busy: "again", quiet: "empty" };

export function Chip({ tone, icon, children }: { tone: Tone; icon?: IconName; children: ComponentChildren }) {
  return <span class={`chip chip-${tone}`}><Icon name={icon ?? ICONS[tone]} size={11} />{children}</span>;
}
