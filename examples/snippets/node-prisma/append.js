// Append with Prisma. npx prisma generate && DB=postgres://… node append.js
import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "@prisma/client";

const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: process.env.DB }) });

async function placeOrder(total) {
  await prisma.$transaction(async (tx) => { // use tx in here, never prisma: that would be another connection
    const order = await tx.order.create({ data: { total } });
    const payload = JSON.stringify({ order: Number(order.id) });
    await tx.$executeRaw`select posthaste.append('orders.placed', ${payload}::jsonb, key => ${String(order.id)})`;
    if (total <= 0) throw new RangeError("an order needs a total"); // rolls back: neither the order nor its event
  });
}

await placeOrder(990);
await placeOrder(0).catch((refused) => console.log(`refused: ${refused.message}`));
await prisma.$disconnect();
