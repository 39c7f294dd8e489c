// Where `g` and a letter lead.

export const GOES: Readonly<Record<string, readonly [page: string, words: string]>> = {
  o: ["overview", "Overview"],
  d: ["dead", "Dead letters"],
  w: ["deferred", "Deferred"],
  e: ["events", "Events"],
  l: ["lanes", "Lanes and relays"],
  c: ["consumers", "Consumers"],
  j: ["jobs", "Jobs"],
  a: ["audit", "Audit"],
  s: ["settings", "Settings"],
};
