// What the page costs: the first load to numbers, a list of 1,000 rows, 30,000 messages of the stream; and that very
// many letters are no more work than a few.
//
//   node speed.mjs ADDRESS TOKEN     outbox `a` has a few letters, outbox `many` very many
import { DEADLINE_MS, ask, check, enter, filled, goTo, isClean, live, tab, until, withBrowser } from "./browser.mjs";
import { startProxy } from "./proxy.mjs";

const [address, token] = process.argv.slice(2);
const LOAD_MS = 1_000;
const ROWS = 1_000;
const FRAME_MS = 50;
const MESSAGES = 30_000;
const HEAP_GROWTH = 3 << 20;
const LOOK_MS = 3_000;

const best = (all) => Math.min(...all);

/** A session, as a tab holds it. */
async function session() {
  const answer = await fetch(new URL("api/v1/session", address), { method: "POST", headers: { authorization: `Bearer ${token}`, "content-type": "application/json" }, body: "{}" });
  check(answer.ok, `${answer.status}`);
  return (await answer.json()).session;
}

/** From the beginning of the navigation, with nothing in any cache, to a number of a sink. */
async function firstLoad(browser, of) {
  const { page, context, faults } = await tab(browser, address);
  await page.addInitScript((kept) => {
    sessionStorage.setItem("posthaste.session", kept);
    new MutationObserver((_, observer) => {
      const shown = [...document.querySelectorAll(".figure dd")].some((one) => /\d/.test(one.textContent));
      if (!shown) return;
      observer.disconnect();
      requestAnimationFrame(() => { globalThis.shownAt = performance.now(); });
    }).observe(document, { childList: true, subtree: true, characterData: true });
  }, of);
  await page.goto(`${address}#/a/overview`);
  await page.waitForFunction(() => globalThis.shownAt !== undefined);
  const took = await page.evaluate(() => globalThis.shownAt);
  isClean(faults, "the first load");
  await context.close();
  return took;
}

/** The longest frame while a list of a thousand rows is scrolled through. */
async function longestFrame(page) {
  return page.evaluate(async () => {
    scrollTo(0, 0);
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    await frame();
    let longest = 0;
    let before = performance.now();
    const end = document.documentElement.scrollHeight - innerHeight;
    for (let top = 0; top < end; top += 120) {
      scrollTo(0, top);
      const now = await frame();
      longest = Math.max(longest, now - before);
      before = now;
    }
    return longest;
  });
}

async function scrolls(page) {
  await goTo(page, "#/many/dead");
  const rows = page.locator("main table").last().locator("[data-row]");
  const more = page.locator("[data-act=more]");
  await until(`${ROWS} rows`, async () => {
    if ((await rows.count()) >= ROWS) return true;
    if ((await more.innerText()) === "Show more") await more.click();
    return false;
  });
  const all = [];
  for (let n = 0; n < 3; n += 1) all.push(await longestFrame(page));
  return best(all);
}

/** The heap after all that can go is gone. */
async function heap(cdp) {
  for (let n = 0; n < 3; n += 1) await cdp.send("HeapProfiler.collectGarbage");
  return (await cdp.send("Runtime.getHeapUsage")).usedSize;
}

/** One tab is told 30,000 things. What they are was asked of the real server. */
async function heapOfStream(browser) {
  const outbox = await ask(address, token, "outboxes/a");
  const outboxes = await ask(address, token, "outboxes");
  const [event] = (await ask(address, token, "outboxes/a/events?limit=1")).events;
  let send = () => undefined;
  const proxy = await startProxy(address, {
    answers(_, answer, path) {
      if (!path.startsWith("/api/v1/stream")) return false;
      answer.writeHead(200, { "content-type": "text/event-stream" });
      send = (name, data) => new Promise((done) => {
        if (answer.write(`event: ${name}\ndata: ${JSON.stringify(data)}\n\n`)) done();
        else answer.once("drain", done);
      });
      void send("outboxes", outboxes);
      return true;
    },
  });
  const { page, context, faults } = await tab(browser, proxy.address);
  await enter(page, proxy.address, token, "#/a/events?tail=yes");
  await live(page);
  const cdp = await context.newCDPSession(page);
  const begin = Date.parse(outbox.now);
  const tell = async (from, to) => {
    for (let n = from; n < to; n += 4) {
      const now = new Date(begin + n * 1_250).toISOString();
      const sinks = outbox.sinks.map((sink) => ({ ...sink, backlog: { count: n, exact: true } }));
      await send("outbox", { ...outbox, now, sinks });
      await send("point", { at: now, sinks: { out: { in_per_s: n % 90, out_per_s: n % 70, backlog: n, oldest_s: n % 60, p50_ms: 3, p99_ms: n % 500, dead: 5, deferred: 0 } } });
      await send("tail", { ...event, seq: 1_000 + n, topic: `t${n}` });
      await send("jobs", { jobs: [{ job: n % 7, kind: "dead.replay", state: "running", total: n, done: n, left_alone: 0, alive: true, actor: "x", reason: "x", reasons: {}, created_at: now, trace_id: "", upto: "", plan: {}, epoch: 1, verified: true }] });
    }
    // The last one is drawn.
    await page.locator("main [data-row]").filter({ hasText: `t${to - 4}` }).first().waitFor();
  };
  // What is kept on purpose is full by then: an hour of points, 500 events.
  await tell(0, MESSAGES / 5);
  const before = await heap(cdp);
  await tell(MESSAGES / 5, MESSAGES);
  const after = await heap(cdp);
  // The charts, too, draw what came.
  await goTo(page, "#/a/overview");
  await page.locator(".chart").first().waitFor();
  isClean(faults, "30,000 messages");
  await context.close();
  proxy.close();
  return [before, after];
}

/** Very many letters of many causes, and a long log. */
async function manyLetters(page) {
  const took = [];
  for (const [hash, shown] of [["#/many/dead", ".cause"], ["#/many/dead?code=code.7", ".cause"], ["#/many/events", "[data-row]"], ["#/many/events?topic=none-of-that", ".looked"], ["#/many/overview", "[data-sink=out]"]]) {
    const begun = Date.now();
    await page.evaluate((to) => { location.hash = to; }, hash);
    await filled(page, hash);
    await page.locator(`main ${shown}`).first().waitFor({ timeout: DEADLINE_MS });
    took.push([hash, Date.now() - begun]);
  }
  return took;
}

await withBrowser(async (browser) => {
  const of = await session();
  const loads = [];
  for (let n = 0; n < 3; n += 1) loads.push(await firstLoad(browser, of));
  console.log(`first load to numbers: ${loads.map((ms) => `${Math.round(ms)} ms`).join(", ")}`);
  const [before, after] = await heapOfStream(browser);
  console.log(`heap behind ${MESSAGES / 5} and ${MESSAGES} messages: ${(before / 2 ** 20).toFixed(2)} and ${(after / 2 ** 20).toFixed(2)} MiB`);
  const { page, faults } = await tab(browser, address);
  await enter(page, address, token, "#/many/overview");
  const took = await manyLetters(page);
  console.log(took.map(([hash, ms]) => `${hash} ${ms} ms`).join(", "));
  const longest = await scrolls(page);
  console.log(`longest frame of ${ROWS} rows: ${longest.toFixed(1)} ms`);
  isClean(faults, "many letters");
  check(best(loads) <= LOAD_MS, "the first load takes too long");
  check(after - before <= HEAP_GROWTH, "the heap grows with the messages");
  check(longest <= FRAME_MS, "a frame of the list takes too long");
  for (const [hash, ms] of took) check(ms <= LOOK_MS, `${hash} takes too long`);
});
