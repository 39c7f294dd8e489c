import { deepEqual, throws } from "node:assert/strict";
import { test } from "node:test";
import { EventStreamParser, type StreamEvent } from "../../src/api/event-stream.ts";

function parsed(...pieces: string[]): StreamEvent[] {
  const parser = new EventStreamParser();
  return pieces.flatMap((piece) => parser.feed(piece));
}

test("an event has a name and data, and a heartbeat tells nothing", () => {
  deepEqual(parsed(":\n\n", "event: jobs\ndata: {\"a\":1}\n\n", ":\n\n"), [{ event: "jobs", data: "{\"a\":1}" }]);
});

test("without a name it is a message, and lines of data are joined", () => {
  deepEqual(parsed("data: a\ndata:b\ndata:  c\n\n"), [{ event: "message", data: "a\nb\n c" }]);
});

test("a name without data is no event, and names nothing that follows", () => {
  deepEqual(parsed("event: x\n\ndata: 1\n\n"), [{ event: "message", data: "1" }]);
});

test("all ends of lines, and a mark of order at the very beginning", () => {
  deepEqual(parsed("\ufeffdata: 1\r\n\r\ndata: 2\r\rdata: 3\n\n"), [1, 2, 3].map((one) => ({ event: "message", data: String(one) })));
});

test("what is no field of ours is passed over", () => {
  deepEqual(parsed("id: 7\nretry: 1\nnonsense\n:x\ndata: 1\n\n"), [{ event: "message", data: "1" }]);
});

test("however a text is cut into pieces, the same events come out", () => {
  const whole = "\ufeff:\r\n\r\nevent: outbox\r\ndata: {\"ü\":\"🎉\"}\r\n\r\nevent: point\ndata: 1\ndata: 2\n\n:\n\ndata: last\n\n";
  const expected = parsed(whole);
  deepEqual(expected.length, 3);
  for (let one = 0; one <= whole.length; one += 1) {
    for (let two = one; two <= whole.length; two += 1) {
      deepEqual(parsed(whole.slice(0, one), whole.slice(one, two), whole.slice(two)), expected, `${one} ${two}`);
    }
  }
});

test("a line that never ends does not fill the memory", () => {
  const parser = new EventStreamParser();
  const piece = "x".repeat(1 << 20);
  throws(() => { for (let n = 0; n < 20; n += 1) parser.feed(piece); }, /too large/);
});
