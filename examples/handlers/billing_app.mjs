// A handler in Node that keeps the marks itself: its effects happen once.
//
//     npm install pg
//     DATABASE_URL=postgres://localhost/shop node billing_app.mjs 8080
//
// `posthaste.admit` and the effect are one transaction. It answers after the commit.
import { createServer } from "node:http";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });

async function handle(message, order) {
  const client = await pool.connect();
  try {
    await client.query("begin");
    const { rows } = await client.query("select posthaste.admit($1, $2, $3, $4::int, $5::bigint) as first", [
      message["posthaste-consumer"], message["posthaste-id"], message["posthaste-topic"],
      message["posthaste-partition"], message["posthaste-position"],
    ]);
    if (rows[0].first) { // nobody has done it
      await client.query("insert into billing.invoices values ($1, $2)", [order.id, order.total]);
    }
    await client.query("commit");
  } catch (error) {
    await client.query("rollback").catch(() => {});
    throw error;
  } finally {
    client.release();
  }
}

const server = createServer(async (request, response) => {
  let order;
  try {
    const parts = [];
    for await (const part of request) parts.push(part);
    order = JSON.parse(Buffer.concat(parts));
  } catch {
    return response.writeHead(422).end("no JSON"); // a dead letter at once
  }
  if (order?.id === undefined || order.total === undefined) return response.writeHead(422).end("no order");
  try {
    await handle(request.headers, order);
    response.writeHead(204).end();
  } catch (error) {
    response.writeHead(500).end(String(error)); // tried again; 503 would wait, without an attempt
  }
});

server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
