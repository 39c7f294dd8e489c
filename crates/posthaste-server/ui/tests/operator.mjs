// The path of an operator: the outage is named, its sink is paused; a cause is opened and replayed with a rate, after
// a look at what would go; the job is watched, paused, resumed and cancelled; the sink goes on; what cannot be mended
// is discarded with a reason; and the audit has all of it. By the mouse on one outbox, by keyboard alone on another.
//
//   node operator.mjs ADDRESS TOKEN OF-THE-MOUSE OF-THE-KEYBOARD
import { check, enter, filled, isClean, live, tab, tellsCommand, until, withBrowser } from "./browser.mjs";

const [address, token, ofMouse, ofKeyboard] = process.argv.slice(2);
/** How many letters the outbox has, and how many a second go: the job lives long enough to be stopped. */
const LETTERS = 12;
const RATE = 1;

/** Somebody with a mouse. */
class Mouse {
  constructor(page) { this.page = page; }
  async enters(outbox) { await enter(this.page, address, token, `#/${outbox}`); }
  async press(target) { await target.click(); }
  async write(field, text) { await field.fill(text); }
  async goTo(title) { await this.page.getByRole("navigation").getByRole("link", { name: title }).click(); }
  async openRow(row) { await row.getByRole("link").first().click(); }
  async ask(act) { await this.page.locator(`main .page-acts [data-act=${act}]`).click(); }
}

/** Somebody who has a keyboard and nothing else. */
class Keyboard {
  constructor(page) { this.page = page; }

  async enters(outbox) {
    await this.page.goto(`${address}#/${outbox}`);
    await this.write(this.page.getByLabel("Token"), token);
    await this.page.keyboard.press("Enter");
    await this.page.locator(".frame").waitFor();
  }

  /** Goes on with Tab until it has the focus; the focus is seen all the way. */
  async reach(target) {
    await target.waitFor();
    for (let steps = 0; steps < 200; steps += 1) {
      if (await target.evaluate((one) => one === document.activeElement)) return;
      await this.page.keyboard.press("Tab");
      const isSeen = await this.page.evaluate(() => {
        const one = document.activeElement;
        return one === null || one === document.body || !one.matches(":focus-visible") || getComputedStyle(one).outlineStyle !== "none";
      });
      check(isSeen, "the focus is on something that does not show it");
    }
    throw new Error(`Tab never comes to ${target}`);
  }

  async press(target) {
    await this.reach(target);
    await this.page.keyboard.press("Enter");
  }

  async write(field, text) {
    await this.reach(field);
    await this.page.keyboard.press("Control+A");
    await this.page.keyboard.type(text);
  }

  async goTo(title) {
    const key = { Overview: "o", "Dead letters": "d", Jobs: "j", Audit: "a" }[title];
    await this.page.keyboard.press("g");
    await this.page.keyboard.press(key);
  }

  /** `j` comes to the row, Enter opens it. */
  async openRow(row) {
    await row.waitFor();
    for (let steps = 0; steps < 50; steps += 1) {
      if (await row.evaluate((one) => one === document.activeElement)) break;
      await this.page.keyboard.press("j");
    }
    await this.page.keyboard.press("Enter");
  }

  async ask(act) {
    const key = { replay: "r", discard: "d" }[act];
    // A list that is not there yet has nothing to act on, and the button says so.
    await this.page.locator(`main .page-acts [data-act=${act}]:not([aria-disabled])`).waitFor();
    await this.page.keyboard.press(key);
  }
}

async function walk(person, outbox) {
  const { page } = person;
  const dialog = page.locator("dialog[open]");
  const button = (name, within = page) => within.getByRole("button", { name });
  /** The open dialog gets its reason and is sent; the command that does the same has the reason in it. */
  const send = async (reason, name, more = async () => undefined) => {
    await dialog.waitFor();
    await person.write(dialog.getByLabel("Reason"), reason);
    await more();
    await tellsCommand(page, `--reason '${reason}'`);
    await person.press(button(name, dialog));
    await dialog.waitFor({ state: "detached" });
  };

  await person.enters(outbox);
  await live(page);
  // The overview names the outage, with its cause.
  await page.locator("[data-health=bad]").filter({ hasText: /mail/ }).filter({ hasText: /out of reach/ }).waitFor();

  // A dialog without a reason says so, and gives the focus back when it is left.
  const pause = button("Pause sink mail");
  await person.press(pause);
  await person.press(button("Pause", dialog));
  await dialog.getByText("Say why").waitFor();
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "detached" });
  check(await pause.evaluate((one) => one === document.activeElement), "the focus is not given back");
  await person.press(pause);
  await send("mail is being moved", "Pause");
  const card = page.locator("[data-sink=mail]");
  await card.getByText("mail is being moved").waitFor();
  await card.locator(".chip-paused").waitFor();

  // From the causes to one of them, and what a replay of it would do.
  await person.goTo("Dead letters");
  await filled(page, `#/${outbox}/dead`);
  await person.openRow(page.locator("main [data-row]").filter({ hasText: "payload.not_json" }).first());
  await page.waitForURL(/fingerprint=/);
  await page.locator(".cause-panel").filter({ hasText: `${LETTERS} letters` }).waitFor();
  await person.ask("replay");
  await dialog.locator("[data-count=goes]").filter({ hasText: String(LETTERS) }).waitFor();
  await send("mended in 2.3.1", `Replay ${LETTERS}`, async () => {
    await person.write(dialog.getByLabel("Rate, a second"), String(RATE));
    await dialog.getByText(`about ${LETTERS / RATE} s`).waitFor();
    await dialog.locator(".command code").filter({ hasText: `--rate ${RATE}/s` }).waitFor();
  });

  // The job: watched, paused, resumed, cancelled.
  await person.press(page.locator(".toast").getByRole("link", { name: /^Job \d+/ }));
  const job = page.locator(".job-panel");
  await job.waitFor();
  const number = await job.getAttribute("data-job");
  const done = async () => Number(await job.locator("progress").getAttribute("value"));
  const isIn = (state) => page.locator(`.job-panel[data-state=${state}]`).waitFor();
  await until("the job's progress", async () => (await done()) >= 1);
  const order = async (word, name, reason, state) => {
    await person.press(button(`${word} job ${number}`));
    await send(reason, name);
    await isIn(state);
  };
  await order("Pause", "Pause", "let me look", "paused");
  const atPause = await done();
  await order("Resume", "Resume", "it looks well", "running");
  await until("progress behind the pause", async () => (await done()) > atPause);
  await order("Cancel", "Cancel the job", "they die again", "cancelled");
  const atEnd = await done();
  check(atEnd >= 1 && atEnd < LETTERS, `cancelled after ${atEnd} of ${LETTERS}`);

  // The sink goes on.
  await person.goTo("Overview");
  await filled(page, `#/${outbox}/overview`);
  await person.press(button("Resume sink mail"));
  await send("mail is back", "Resume");
  await card.locator(".chip-paused").waitFor({ state: "detached" });

  // What was replayed dies again; all of it is discarded.
  await person.goTo("Dead letters");
  await filled(page, `#/${outbox}/dead`);
  await page.locator("main .big-num").filter({ hasText: new RegExp(`^${LETTERS}$`) }).waitFor();
  await person.openRow(page.locator("main [data-row]").filter({ hasText: "payload.not_json" }).first());
  await page.locator(".cause-panel").waitFor();
  await person.ask("discard");
  await dialog.locator("[data-count=goes]").filter({ hasText: String(LETTERS) }).waitFor();
  await send("never was an order", `Discard ${LETTERS}`);
  await person.press(page.locator(".toast").getByRole("link", { name: /^Job \d+/ }));
  await isIn("done");
  await person.goTo("Dead letters");
  await page.getByText("Nothing was given up.").waitFor();

  // The audit has all of it, by the name of the token.
  await person.goTo("Audit");
  await filled(page, `#/${outbox}/audit`);
  const told = [
    ["pause", "mail is being moved"], ["replay", "mended in 2.3.1"], ["pause job", "let me look"], ["resume job", "it looks well"],
    ["cancel job", "they die again"], ["resume", "mail is back"], ["discard", "never was an order"],
  ];
  for (const [action, reason] of told) {
    const line = page.locator("main [data-row]").filter({ hasText: reason }).filter({ hasText: outbox }).filter({ has: page.getByText(action, { exact: true }) }).first();
    await line.filter({ hasText: "root" }).waitFor().catch(() => { throw new Error(`the audit lacks ${action}: ${reason}`); });
  }
}

await withBrowser(async (browser) => {
  await Promise.all([[Mouse, ofMouse], [Keyboard, ofKeyboard]].map(async ([Person, outbox]) => {
    const { page, context, faults } = await tab(browser, address);
    try {
      await walk(new Person(page), outbox);
      isClean(faults, outbox);
    } catch (error) {
      // Whoever reads the failure sees what the page said then.
      throw new Error(`${Person.name} on ${outbox} at ${page.url()}: ${error.stack}\n${await page.locator("body").innerText().catch(() => "")}`);
    }
    await context.close();
  }));
});
