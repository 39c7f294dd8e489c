// Hands in one order, and repeats until it is stored. Needs nothing but Node 18.
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";

const NOT_NOW = [408, 409, 429, 503];

// Answers the ids of what is stored. The key makes every try the same request: nothing is stored twice.
async function handIn(topic, event, tries = 20) {
  const headers = {
    Authorization: `Bearer ${process.env.KEY}`,
    "Content-Type": "application/json",
    "Idempotency-Key": randomUUID(),
    "Event-Type": "OrderPlaced",
  };
  for (let n = 0; n < tries; n++) {
    let wait = 1;
    try {
      const request = { method: "POST", headers, body: JSON.stringify(event), signal: AbortSignal.timeout(10_000) };
      const answer = await fetch(`${process.env.GATEWAY}/v1/topics/${topic}`, request);
      if (answer.status === 202) return (await answer.json()).ids;
      if (!NOT_NOW.includes(answer.status)) throw new TypeError(await answer.text(), { cause: "refused" });
      wait = Number(answer.headers.get("Retry-After") ?? 1);
    } catch (error) {
      if (error.cause === "refused") throw error;
    }
    await pause(wait * 1_000);
  }
  throw new Error("it was not taken");
}

console.log(JSON.stringify({ ids: await handIn("orders.placed", { order: Number(process.argv[2]) }) }));
