// Chromium, and a page in it that is watched: what a page must never do, and what it must always come to.
//
// A test waits for a state and never for a time; the deadline is long enough for a loaded machine.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { chromium } from "playwright-core";

export const DEADLINE_MS = 60_000;
const EXECUTABLE = "/usr/bin/chromium";
const ARGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

/** A browser with a new and empty profile; it ends with the work. */
export async function withBrowser(work) {
  const browser = await chromium.launch({ executablePath: EXECUTABLE, args: ARGS, timeout: DEADLINE_MS });
  try {
    return await work(browser);
  } finally {
    await browser.close();
  }
}

/** A tab that is watched from its first byte on. `home`: whom it may ask. */
export async function tab(browser, home, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, timezoneId: "Europe/Berlin", locale: "en-GB", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(DEADLINE_MS);
  const faults = [];
  const mine = new URL(home).origin;
  page.on("dialog", (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("pageerror", (error) => faults.push(`an error that nobody caught: ${error.stack ?? error.message}`));
  page.on("popup", (popup) => faults.push(`another window: ${popup.url()}`));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "blob:" && url.origin !== mine) faults.push(`a request to elsewhere: ${request.url().slice(0, 200)}`);
  });
  // The browser tells of violations at the console, whatever the page listens to.
  page.on("console", (message) => {
    if (/content security policy|trustedhtml|trustedscript|trusted type/i.test(message.text())) faults.push(`a violation: ${message.text()}`);
  });
  return { page, context, faults };
}

export function check(holds, what) {
  if (!holds) throw new Error(what);
}

/** Nothing has happened that a page must never do. */
export function isClean(faults, where) {
  check(faults.length === 0, `${where}: ${faults.join("\n")}`);
}

/** Waits until something holds that this process sees, and not the page. */
export async function until(what, holds) {
  const end = Date.now() + DEADLINE_MS;
  for (;;) {
    const found = await holds();
    if (found) return found;
    check(Date.now() < end, `it did not come: ${what}`);
    await new Promise((done) => setTimeout(done, 50)); // pace
  }
}

/** Enters with a token, by the mouse, and waits for the frame. A session that somebody has is taken as it is. */
export async function enter(page, address, token, hash = "") {
  await page.goto(`${address}${hash}`);
  if (token.startsWith("phs_")) {
    await page.evaluate((session) => sessionStorage.setItem("posthaste.session", session), token);
    await page.reload();
    return page.locator(".frame").waitFor();
  }
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Enter" }).click();
  return page.locator(".frame").waitFor();
}

/** Goes to a place of the page and waits until it has been filled. */
export async function goTo(page, hash) {
  await page.evaluate((to) => { location.hash = to; }, hash);
  await filled(page, hash);
}

/** The page of this address is drawn, and nothing of it is waited for. */
export async function filled(page, hash) {
  const name = hash.split(/[?#]/)[1]?.split("/")[2] || "overview";
  await page.waitForFunction((wanted) => {
    const main = document.querySelector("main.main");
    return main?.dataset["page"] === wanted && main.querySelector(".waiting") === null && main.childElementCount > 0;
  }, name).catch(async (error) => {
    // Whoever reads the failure sees what the page said instead.
    throw new Error(`${hash} is not filled: ${error.message}\n${page.url()}\n${await page.locator("body").innerText()}`);
  });
}

/** Waits for the stream. */
export const live = (page) => page.locator("[data-live=live]").waitFor();

/** Asks the API as the page would, with a token. */
export async function ask(address, token, path) {
  const answer = await fetch(new URL(`api/v1/${path}`, address), { headers: { authorization: `Bearer ${token}` } });
  check(answer.ok, `${path}: ${answer.status} ${await answer.clone().text()}`);
  return answer.json();
}

const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

/** What axe finds, all of its rules for WCAG A and AA and its best practices. */
export async function axe(page, where) {
  await page.evaluate(`if (!globalThis.axe) { ${axeSource} }`);
  const found = await page.evaluate(async () => {
    const { violations } = await globalThis.axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 4).map((node) => `${node.html.slice(0, 160)} ${node.any[0]?.message ?? ""}`).join(" | ")}`);
  });
  check(found.length === 0, `axe on ${where}:\n${found.join("\n")}`);
}

/** Nothing is wider than the window: neither the page nor an open dialog. */
export async function fits(page, where) {
  const wide = await page.evaluate(() => {
    const boxes = [document.documentElement, ...document.querySelectorAll("dialog[open]")];
    const found = boxes.filter((box) => box.scrollWidth > box.clientWidth).map((box) => `${box.tagName} ${box.scrollWidth} > ${box.clientWidth}`);
    if (found.length === 0) return found;
    const out = [...document.querySelectorAll("body *")].filter((one) => one.getBoundingClientRect().right > innerWidth + 1);
    return [...found, ...out.slice(-4).map((one) => one.outerHTML.slice(0, 200))];
  });
  check(wide.length === 0, `a horizontal scroll bar on ${where}:\n${wide.join("\n")}`);
}

/** Nothing of a page was left out because it did not come, and no sentence of the page is an error of its own. */
export async function saysNoNonsense(page, where) {
  const text = await page.locator("body").innerText();
  for (const nonsense of ["[object Object]", "NaN", "undefined", "Invalid Date"]) {
    check(!text.includes(nonsense), `${where} says ${nonsense}: …${text.slice(Math.max(0, text.indexOf(nonsense) - 80)).slice(0, 160)}…`);
  }
}

/** Tells the test the command that the open dialog shows, once it has these words in it. Whoever runs this script runs it, too. */
export async function tellsCommand(page, words) {
  const shown = page.locator("dialog[open] .command code").filter({ hasText: words });
  console.log(`command ${JSON.stringify(await shown.textContent())}`);
}
