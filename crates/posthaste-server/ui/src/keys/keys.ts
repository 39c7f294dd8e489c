// Keys for those who live here. They act on what is on the page: a row that has the focus, a button with a name.

import { here, go, link } from "../place/here.ts";
import { showKeys } from "./help.tsx";
import { GOES } from "./goes.ts";

/** After `g` the next key says where to, within this time. */
const GO_MS = 1_500;
let goSince = 0;

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement ||
    (target instanceof HTMLInputElement && target.type !== "checkbox");
}

const rows = (): HTMLElement[] => [...document.querySelectorAll<HTMLElement>("main [data-row]")];
const rowNow = (): HTMLElement | null => document.activeElement?.closest<HTMLElement>("[data-row]") ?? null;

function move(by: number): void {
  const all = rows();
  const now = rowNow();
  const at = now === null ? (by > 0 ? -1 : all.length) : all.indexOf(now);
  const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

/**
 * Presses a button by its name. A row that has the focus has a button of its own, or can be selected: then it is meant,
 * unless others are selected. Without such a row it is the button of the page.
 */
function press(act: string): boolean {
  const name = `[data-act="${act}"]`;
  const row = rowNow();
  const own = row?.querySelector<HTMLElement>(name);
  const box = row?.querySelector<HTMLElement>("input[type=checkbox]");
  const button = own ?? (row === null || box ? document.querySelector<HTMLElement>(`main .page-acts ${name}`) : null);
  if (!own && button && box && document.querySelector("main [data-row] input:checked") === null) box.click();
  button?.click();
  return Boolean(button);
}

function onKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]") !== null) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") (event.target as HTMLElement).blur();
    return;
  }
  if (Date.now() - goSince < GO_MS) {
    goSince = 0;
    const to = GOES[event.key];
    if (to !== undefined && here.peek().outbox !== "") {
      event.preventDefault();
      go(link(to[0]));
      return;
    }
  }
  if (act(event.key)) event.preventDefault();
}

function act(key: string): boolean {
  const now = rowNow();
  switch (key) {
    case "g": goSince = Date.now(); return true;
    case "j": move(1); return true;
    case "k": move(-1); return true;
    case "x": now?.querySelector<HTMLElement>("input[type=checkbox]")?.click(); return now !== null;
    case "Enter":
      if (now === null || document.activeElement !== now || now.dataset["to"] === undefined) return false;
      go(now.dataset["to"]);
      return true;
    case "r": return press("replay");
    case "d": return press("discard");
    case "m": {
      const more = document.querySelector<HTMLElement>("main [data-act=more]");
      more?.click();
      return more !== null;
    }
    case "/": {
      const field = document.querySelector<HTMLInputElement>("main [data-filter]");
      field?.focus();
      field?.select();
      return field !== null;
    }
    case "?": showKeys(); return true;
    default: return false;
  }
}

export function watchKeys(): void {
  addEventListener("keydown", onKey);
}
