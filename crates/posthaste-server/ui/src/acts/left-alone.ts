// Why a job leaves something alone, in words.

import { own } from "../show/text.ts";

const WORDS: Readonly<Record<string, string>> = {
  "admin.no_route": "no route takes their topic to that sink any more",
  "admin.not_served": "their sink is not served any more",
  "deferred.scheduled": "they wait for their own time",
  "deferred.behind": "they wait behind an earlier one of their key",
  "deferred.due": "they are due already",
  "events.waits_or_dead": "they wait there already, or are dead there",
};

export function leftAlone(code: string): string {
  const words = own(WORDS, code);
  return words ? `${words} (${code})` : code;
}
