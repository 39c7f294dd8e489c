import { equal } from "node:assert/strict";
import { test } from "node:test";
import type { LogEvent } from "../../src/api/shapes.ts";
import { isOfPattern, matches } from "../../src/pages/tail-filter.ts";

test("a star is any run of characters, and anything else is itself", () => {
  const yes = [["a", "a"], ["orders.placed", "orders.*"], ["orders.", "orders.*"], ["a", "*"], ["", "*"], ["abcabc", "a*c*c"], ["a.b", "*.*"], ["aXbYc", "a*b*c"]];
  const no = [["a", "A"], ["orders", "orders.*"], ["ab", "a*bb"], ["ab", "ab*b"], ["abc", "a*d*c"], ["aa", "a*a*a"], ["axb", "a.b"], ["a", ""]];
  for (const [topic, pattern] of yes) equal(isOfPattern(topic ?? "", pattern ?? ""), true, `${topic} ${pattern}`);
  for (const [topic, pattern] of no) equal(isOfPattern(topic ?? "", pattern ?? ""), false, `${topic} ${pattern}`);
});

test("a pattern that makes others slow makes this one no slower", () => {
  const begun = performance.now();
  equal(isOfPattern("a".repeat(10_000), `${"a*".repeat(500)}b`), false);
  equal(performance.now() - begun < 1_000, true);
});

test("topic and key both have to match", () => {
  const event = { topic: "orders.placed", key: "k" } as LogEvent;
  equal(matches(event, undefined, undefined), true);
  equal(matches(event, "orders.*", "k"), true);
  equal(matches(event, "orders.*", "other"), false);
  equal(matches(event, "mail.*", "k"), false);
});
