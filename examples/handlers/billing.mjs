// A handler in Node: Posthaste posts each message, and keeps the marks.
//
//     node billing.mjs 8080
//
// Needs nothing but Node. Effects happen at least once; the events of an answer are appended once.
import { createServer } from "node:http";

async function read(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts);
}

const server = createServer(async (request, response) => {
  let order;
  try {
    order = JSON.parse(await read(request));
  } catch {
    return response.writeHead(422).end("no JSON"); // a dead letter at once
  }
  if (order?.id === undefined || typeof order.total !== "number") return response.writeHead(422).end("no order");
  if (order.total < 0) return response.writeHead(422).end("a negative total");
  const invoice = { order: order.id, total: order.total };
  const events = [{ topic: "invoices.made", key: String(order.id), payload: invoice }];
  response.writeHead(200, { "Content-Type": "application/vnd.posthaste.events+json" });
  response.end(JSON.stringify({ events }));
});

server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
