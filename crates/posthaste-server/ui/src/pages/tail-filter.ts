// Which events of the live tail are shown. Pure.

import type { LogEvent } from "../api/shapes.ts";

/** Whether a topic is of a pattern, where `*` is any run of characters. No pattern makes it slow. */
export function isOfPattern(topic: string, pattern: string): boolean {
  const parts = pattern.split("*");
  const first = parts[0] ?? "";
  const last = parts[parts.length - 1] ?? "";
  if (parts.length === 1) return topic === pattern;
  if (!topic.startsWith(first) || !topic.endsWith(last) || topic.length < first.length + last.length) return false;
  let at = first.length;
  for (const part of parts.slice(1, -1)) {
    const found = topic.indexOf(part, at);
    if (found < 0) return false;
    at = found + part.length;
  }
  return at <= topic.length - last.length;
}

export function matches(event: LogEvent, topic: string | undefined, key: string | undefined): boolean {
  return (topic === undefined || isOfPattern(event.topic, topic)) && (key === undefined || event.key === key);
}
