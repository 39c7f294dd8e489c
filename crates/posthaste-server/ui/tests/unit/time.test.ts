import { equal } from "node:assert/strict";
import { test } from "node:test";
import { fullTime, instant, readTime, relative, shortTime } from "../../src/show/time.ts";

const AT = Date.UTC(2026, 10, 15, 8, 5, 9, 42);
const SECOND = 1_000;

test("the date is left out where it is today's, and the year where it is this one", () => {
  equal(shortTime(AT, "utc", AT + 60 * SECOND), "08:05:09");
  equal(shortTime(AT, "utc", AT + 86_400 * SECOND), "11-15 08:05:09");
  equal(shortTime(AT, "utc", AT + 366 * 86_400 * SECOND), "2026-11-15 08:05:09");
  equal(shortTime(Number.NaN, "utc", AT), "–");
});

test("the whole of a time has its thousandths, also before 1970", () => {
  equal(fullTime(AT, true), "2026-11-15 08:05:09.042 UTC");
  equal(fullTime(-1, true), "1969-12-31 23:59:59.999 UTC");
});

test("a distance does not tick where seconds say nothing", () => {
  equal(relative(AT, AT + 300), "now");
  equal(relative(AT, AT + 12.9 * SECOND), "12 s ago");
  equal(relative(AT, AT + 125 * SECOND), "2m ago");
  equal(relative(AT, AT + 130 * SECOND), "2m ago");
  equal(relative(AT + 90 * SECOND, AT), "in 1m");
});

test("an instant of nothing is none", () => {
  equal(Number.isNaN(instant(null)), true);
  equal(Number.isNaN(instant("yesterday")), true);
  equal(instant("2026-11-15T08:05:09.042Z"), AT);
});

test("a time that is typed: a distance, a date, or wrong", () => {
  equal(readTime(" ", AT), null);
  equal(readTime("2h", AT), new Date(AT - 7_200 * SECOND).toISOString());
  equal(readTime("30 s", AT), new Date(AT - 30 * SECOND).toISOString());
  equal(readTime("2026-11-15T08:00:00Z", AT), "2026-11-15T08:00:00.000Z");
  equal(readTime("2026-11-15T10:00:00+02:00", AT), "2026-11-15T08:00:00.000Z");
  for (const wrong of ["soon", "2 weeks", "08:00", "2026-13-45", "15.11.2026", "-2h", "1.5h"]) equal(readTime(wrong, AT), undefined, wrong);
});

test("what is too far away for a clock is no time", () => {
  equal(readTime("99999999999999d", 0), undefined);
  equal(readTime("9999999999h", 0), undefined);
});
