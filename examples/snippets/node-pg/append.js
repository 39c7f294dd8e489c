// Append with pg. DB=postgres://… node append.js
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DB });

async function placeOrder(total) {
  const db = await pool.connect(); // one connection for all of it: pool.query() may take another one each time
  try {
    await db.query("begin");
    const { rows: [order] } = await db.query("insert into orders (total) values ($1) returning id", [total]);
    await db.query("select posthaste.append('orders.placed', $1::jsonb, key => $2)", [
      JSON.stringify({ order: Number(order.id) }),
      order.id,
    ]);
    if (total <= 0) throw new RangeError("an order needs a total");
    await db.query("commit");
  } catch (error) {
    await db.query("rollback"); // neither the order nor its event
    throw error;
  } finally {
    db.release();
  }
}

await placeOrder(990);
await placeOrder(0).catch((refused) => console.log(`refused: ${refused.message}`));
await pool.end();
