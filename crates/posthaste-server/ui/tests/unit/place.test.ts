import { deepEqual, equal } from "node:assert/strict";
import { test } from "node:test";
import { changed, codeOf, readPlace, writePlace } from "../../src/place/place.ts";
import { HOSTILE } from "./hostile.ts";

test("an address without anything is the first page of no outbox yet", () => {
  for (const empty of ["", "#", "#/"]) deepEqual(readPlace(empty), { outbox: "", page: "overview", of: "", filters: {} });
  deepEqual(readPlace("#/shop"), { outbox: "shop", page: "overview", of: "", filters: {} });
});

test("outbox, page, what it is about, and filters", () => {
  deepEqual(readPlace("#/shop/dead?code=http.status_422&sink=out"), { outbox: "shop", page: "dead", of: "", filters: { code: "http.status_422", sink: "out" } });
  deepEqual(readPlace("#/shop/event/42"), { outbox: "shop", page: "event", of: "42", filters: {} });
});

test("whatever a name, a key or a filter is, the address that was written says the same when it is read", () => {
  for (const text of HOSTILE) {
    const place = { outbox: text, page: "event", of: text, filters: { key: text, topic: "*" } };
    deepEqual(readPlace(writePlace(place)), place, JSON.stringify(text));
  }
});

test("a broken address is a place, not an error", () => {
  equal(readPlace("#/%E0%A4%A/dead").outbox, "%E0%A4%A");
  equal(readPlace("#/a/dead?%E0%A4%A=%").page, "dead");
  equal(readPlace("#/a/event/b/c").of, "b/c");
});

test("the first of two filters of a name counts, and an empty one is none", () => {
  deepEqual(readPlace("#/a/dead?key=1&key=2&sink=").filters, { key: "1" });
});

test("filters are written in one order, so that equal places have equal addresses", () => {
  const place = { outbox: "a", page: "dead", of: "" };
  equal(writePlace({ ...place, filters: { b: "2", a: "1" } }), writePlace({ ...place, filters: { a: "1", b: "2" } }));
  equal(writePlace({ ...place, filters: {} }), "#/a/dead");
});

test("a change of filters adds, replaces, and takes away by an empty text", () => {
  deepEqual(changed({ a: "1", b: "2" }, { b: "", c: "3" }), { a: "1", c: "3" });
});

test("the code of a link is read from a fragment that has nothing else", () => {
  equal(codeOf("#code=abc"), "abc");
  for (const none of ["", "#/a/dead?code=http", "#code=", "#code=a&b=c", "x#code=a"]) equal(codeOf(none), null, none);
});
