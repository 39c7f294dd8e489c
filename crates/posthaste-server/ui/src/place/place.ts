// Where the page is, as its address says it: `#/OUTBOX/PAGE/OF?filters`. Pure.
//
// Every filter is in the address, so that back works and a link opens the same view. The fragment alone is
// used: it works under any path that a proxy puts the page at, and is sent to nobody.

export type Filters = Readonly<Record<string, string>>;

export interface Place {
  /** The outbox; empty until one is known. */
  readonly outbox: string;
  readonly page: string;
  /** What the page is about, as an event's number. */
  readonly of: string;
  readonly filters: Filters;
}

export const FIRST_PAGE = "overview";

/** A part of an address; one that is broken is taken as it stands. */
function part(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function readPlace(hash: string): Place {
  const whole = hash.replace(/^#\/?/, "");
  const cut = whole.indexOf("?");
  const path = cut < 0 ? whole : whole.slice(0, cut);
  const parts = path.split("/").map(part);
  const filters: Record<string, string> = {};
  for (const [name, value] of new URLSearchParams(cut < 0 ? "" : whole.slice(cut + 1))) {
    if (value !== "" && !(name in filters)) filters[name] = value;
  }
  return { outbox: parts[0] ?? "", page: parts[1] || FIRST_PAGE, of: parts.slice(2).join("/"), filters };
}

export function writePlace(place: Place): string {
  const parts = [place.outbox, place.page, place.of].map(encodeURIComponent);
  while (parts.length > 1 && parts[parts.length - 1] === "") parts.pop();
  const query = new URLSearchParams();
  for (const name of Object.keys(place.filters).sort()) {
    const value = place.filters[name];
    if (value) query.set(name, value);
  }
  const filters = query.toString();
  return `#/${parts.join("/")}${filters === "" ? "" : `?${filters}`}`;
}

/** The same filters with some changed; an empty text takes one away. */
export function changed(filters: Filters, change: Filters): Filters {
  const all = { ...filters, ...change };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== ""));
}

/** The code of a link that a terminal printed, `#code=…`. */
export function codeOf(hash: string): string | null {
  return /^#code=([^&]+)$/.exec(hash)?.[1] ?? null;
}
