// What must not happen to whoever looks on: a wrong token that says nothing, a selection that becomes everything, an
// event that freezes the page, a stream whose end is an alarm, a fifth page that waits for ever, a second press, a way back
// that leads elsewhere.
//
//   node mishaps.mjs ADDRESS TOKEN     says `bury` and `append`, and then wants a line when that is done
import { request } from "node:http";
import { createInterface } from "node:readline/promises";
import { ask, check, enter, filled, goTo, isClean, live, tab, until, withBrowser } from "./browser.mjs";
import { startProxy } from "./proxy.mjs";

const [address, token] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin });
const answers = lines[Symbol.asyncIterator]();
/** Lets the test do something, and waits until it is done. */
const letTest = async (what) => { console.log(what); await answers.next(); };
/** A page's streams before this are begun and ended at once: no server does that. */
const LIFE_MS = 1_500;

const dialog = (page) => page.locator("dialog[open]");
const button = (page, name) => page.locator("main").getByRole("button", { name }).first();
const session = (page) => page.evaluate(() => sessionStorage.getItem("posthaste.session"));
const escape = async (page) => { await page.keyboard.press("Escape"); await dialog(page).waitFor({ state: "detached" }); };

async function entering(page) {
  await page.goto(`${address}#/a/dead`);
  await page.getByLabel("Token").fill("pht_wrong");
  await page.getByRole("button", { name: "Enter" }).click();
  await page.getByText("This token is none, or its time is over.").waitFor();
  check((await page.getByLabel("Token").inputValue()) === "pht_wrong" && (await session(page)) === null, "a wrong token is kept");
  // The server has a code for each start alone: this one opens what the token would.
  await page.route("**/api/v1/session", async (route) => {
    const isGood = (route.request().postData() ?? "").includes("phc_good");
    if (isGood) await route.continue({ headers: { ...route.request().headers(), authorization: `Bearer ${token}` }, postData: "{}" });
    else await route.continue();
  });
  const open = (code) => page.evaluate((text) => { location.hash = `#code=${text}`; }, code);
  await open("phc_used");
  await page.getByText("This link was used already").waitFor();
  await open("phc_good");
  await page.locator(".frame").waitFor();
  await filled(page, "#/a/dead");
  const first = await session(page);
  await open("phc_used");
  await page.locator(".toast", { hasText: "This link was used already" }).waitFor();
  check((await session(page)) === first && page.url().endsWith("#/a/dead"), `a link that was used changed something: ${page.url()}`);
  await open("phc_good");
  await page.waitForFunction((old) => sessionStorage.getItem("posthaste.session") !== old, first);
  await filled(page, "#/a/dead");
  check(!page.url().includes("code"), "the code is left in the address");
}

async function selecting(page) {
  await live(page);
  const letters = page.locator("main table").last();
  const row = (sink) => letters.locator("[data-row]").filter({ has: page.getByText(sink, { exact: true }) }).first();
  await row("out").getByRole("checkbox").check();
  await button(page, /^Discard 1 selected/).waitFor();
  const mine = await row("out").locator("a").first().getAttribute("href");
  await letTest("bury");
  // It has slid off the page: others came before it.
  await letters.locator(`a[href="${mine}"]`).waitFor({ state: "detached" });
  await button(page, /^Discard 1 selected/).click();
  await dialog(page).locator("[data-count=goes]").filter({ hasText: /^1$/ }).waitFor();
  await escape(page);
  // Rows of two sinks are none that a job could have. One sink may have buried last, a page full.
  while ((await row("two").count()) === 0) {
    const shown = await letters.locator("[data-row]").count();
    await button(page, /^Show more/).click();
    await letters.locator("[data-row]").nth(shown).waitFor();
  }
  await row("two").getByRole("checkbox").check();
  await button(page, /^Discard 2 selected/).click();
  await page.getByText("The selected are of several sinks").waitFor();
  check((await dialog(page).count()) === 0, "a job of two sinks is asked for");
  await goTo(page, "#/a/dead?sink=two");
  await button(page, /^Discard all that match/).waitFor();
  // A key means the row that has the focus.
  await row("two").focus();
  await page.keyboard.press("r");
  await dialog(page).getByText("Replay 1 selected letter").waitFor();
  await escape(page);
}

/** Back leads to the list as it was: with its filters in the address, in the fields and in what is listed. */
async function goingBack(page) {
  const field = (name) => page.locator(`form.filters [name=${name}]`);
  const isAt = async (hash, fields = {}) => {
    await page.waitForURL(`${address}${hash}`);
    await filled(page, hash);
    for (const [name, value] of Object.entries(fields)) {
      await until(`${name} is ${value} at ${hash}`, async () => (await field(name).inputValue()) === value);
    }
  };
  const numbers = async () => (await page.locator("main [data-row] a").allInnerTexts()).join();
  await goTo(page, "#/a/events");
  await field("topic").fill("bad");
  await field("topic").press("Enter");
  await isAt("#/a/events?topic=bad");
  await field("to_seq").fill("2");
  await field("to_seq").press("Enter");
  const narrow = ["#/a/events?to_seq=2&topic=bad", { topic: "bad", to_seq: "2" }];
  await isAt(...narrow);
  await until("two events", async () => (await numbers()) === "1,2");
  await page.locator("main [data-row] a").last().click();
  await page.locator(".timeline").waitFor();
  await page.goBack();
  await isAt(...narrow);
  await until("the same two", async () => (await numbers()) === "1,2");
  await page.goBack();
  await isAt("#/a/events?topic=bad", { topic: "bad", to_seq: "" });
  await page.goBack();
  await isAt("#/a/events", { topic: "", to_seq: "" });
  // A list that is chosen from, and a letter that is opened by its row.
  await goTo(page, "#/a/dead");
  await field("sink").selectOption("two");
  await isAt("#/a/dead?sink=two");
  await page.locator("main table").last().locator("[data-row]").first().press("Enter");
  await page.locator(".timeline").waitFor();
  await page.goBack();
  await isAt("#/a/dead?sink=two", { sink: "two" });
  await page.locator("main table").last().locator("[data-row]").first().waitFor();
  await page.goBack();
  await isAt("#/a/dead", { sink: "" });
}

async function freezing(page, far) {
  await goTo(page, `#/a/event/${far}`);
  await page.locator(".timeline").getByText("not to be delivered before").waitFor();
  await page.keyboard.press("r");
  await dialog(page).getByLabel("Sink").selectOption("two");
  await dialog(page).getByRole("button", { name: "Go on" }).click();
  await dialog(page).getByText(`Replay event ${far} to two`).waitFor();
  await escape(page);
  await goTo(page, "#/a/deferred");
  // What cannot be drawn at all takes nothing else with it.
  await page.route("**/events/1", (route) => route.fulfill({ json: { event: { seq: 1 } } }));
  await page.evaluate(() => { location.hash = "#/a/event/1"; });
  await page.getByText("This page could not be drawn").waitFor();
  await goTo(page, "#/a/overview");
  await page.locator("[data-sink=out]").waitFor();
  check((await page.getByText("This page could not be drawn").count()) === 0, "the note outlives its page");
}

async function acting(page) {
  // A chart says what was when, and does nothing else with a mouse.
  const chart = page.locator(".chart-place").first();
  await chart.click();
  await chart.dblclick();
  await page.locator(".chart-at").first().waitFor();
  await page.locator("p", { hasText: "Route all by root: “frozen”" }).waitFor();
  await button(page, "Resume route all").click();
  await dialog(page).getByLabel("Reason").fill("thawed");
  await dialog(page).locator(".command code").filter({ hasText: "posthaste resume --route all --reason thawed" }).waitFor();
  await dialog(page).getByRole("button", { name: "Resume" }).click();
  await button(page, "Resume route all").waitFor({ state: "detached" });

  await goTo(page, "#/a/lanes");
  let sent = 0;
  await page.route("**/rewind", async (route) => { sent += 1; await route.fulfill({ json: {} }); });
  await button(page, "Rewind sink out").click();
  await dialog(page).getByLabel("To").selectOption("earliest");
  await dialog(page).getByLabel("Reason").fill("once");
  await dialog(page).locator("form").evaluate((form) => { form.requestSubmit(); form.requestSubmit(); });
  await page.getByText("Sink out is rewound.").waitFor();
  check(sent === 1, `one press is ${sent} acts`);
}

/** A proxy that can end a stream as the server does when its connection is over. */
async function endingProxy() {
  const streams = new Set();
  const proxy = await startProxy(address, {
    answers(asked, answer, path) {
      if (!path.startsWith("/api/v1/stream")) return false;
      const to = new URL(address);
      const passed = request({ host: to.hostname, port: to.port, path, headers: { ...asked.headers, host: to.host } }, (got) => {
        answer.writeHead(got.statusCode, { "content-type": got.headers["content-type"] });
        got.on("data", (data) => answer.write(data));
        got.on("end", () => answer.end());
      });
      const stream = { path, begun: Date.now(), end() { passed.destroy(); answer.end(); } };
      passed.on("error", () => answer.end());
      answer.on("close", () => { passed.destroy(); streams.delete(stream); });
      streams.add(stream);
      passed.end();
      return true;
    },
  });
  return { ...proxy, streams };
}

async function ending(browser) {
  const proxy = await endingProxy();
  const { page, context, faults } = await tab(browser, proxy.address);
  await enter(page, proxy.address, token, "#/a/events?tail=yes");
  await live(page);
  const stream = await until("a stream with a tail", () => [...proxy.streams].find(({ path }) => path.includes("tail=true")));
  await until("its life", () => Date.now() - stream.begun > LIFE_MS);
  await page.evaluate(() => {
    globalThis.seen = [];
    const mark = document.querySelector("[data-live]");
    new MutationObserver(() => globalThis.seen.push(mark.dataset.live)).observe(mark, { attributes: true });
  });
  await letTest("append");
  await page.locator("main [data-row]").filter({ hasText: "tail.first" }).waitFor();
  stream.end();
  await letTest("append");
  const next = await until("the next stream", () => [...proxy.streams].find((one) => one !== stream));
  check(/tail_after=\d+/.test(next.path), `it begins anew: ${next.path}`);
  await page.locator("main [data-row]").filter({ hasText: "tail.second" }).waitFor();
  check((await page.locator("main [data-row]").count()) === 2, "an event is shown twice");
  const seen = await page.evaluate(() => globalThis.seen);
  check(!seen.includes("stale"), `an ordinary end is an alarm: ${seen.join()}`);
  check((await page.getByText("some came while the stream was away").count()) === 0, "nothing was missed");
  isClean(faults, "a stream that ends");
  await context.close();
  proxy.close();
}

async function fifth(browser) {
  const open = await Promise.all(Array.from({ length: 4 }, () => until("a place", () => new Promise((done) => {
    const passed = request(new URL("api/v1/stream?outbox=a", address), { headers: { authorization: `Bearer ${token}` } }, (got) => {
      got.resume();
      got.on("error", () => undefined);
      done(got.statusCode === 200 ? passed : null);
    });
    passed.on("error", () => done(null));
    passed.end();
  }))));
  const { page, context, faults } = await tab(browser, address);
  await enter(page, address, token, "#/a/overview");
  await page.locator("[data-sink=out]").waitFor();
  await page.getByText("This page is not live").filter({ hasText: "4 streams open already" }).waitFor();
  open.forEach((one) => one.destroy());
  await live(page);
  await page.getByText("This page is not live").waitFor({ state: "detached" });
  isClean(faults, "a fifth page");
  await context.close();
}

await withBrowser(async (browser) => {
  const { page, context, faults } = await tab(browser, address);
  const { events } = await ask(address, token, "outboxes/a/events?topic=far");
  try {
    await entering(page);
    await selecting(page);
    await goingBack(page);
    await freezing(page, events[0].seq);
    await acting(page);
    isClean(faults, "mishaps");
  } catch (error) {
    throw new Error(`${error.stack}\n${page.url()}\n${await page.locator("body").innerText().catch(() => "")}`);
  }
  await context.close();
  await ending(browser);
  await fifth(browser);
  lines.close();
});
