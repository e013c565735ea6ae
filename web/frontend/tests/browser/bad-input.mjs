// What a page must survive: node tests/browser/bad-input.mjs '{"url", "token", "run", "hostile", "sealed"}'. Exit code 1 = a step failed.
import { ask, launch, openPage } from "./launch.mjs";
import { accessible, accessibleInBoth, must, runSteps, settled } from "./steps.mjs";

const { url, token, run, hostile, sealed } = JSON.parse(process.argv[2]);
const browser = await launch();
const { context, page, faults } = await openPage(browser, url);
page.setDefaultTimeout(60_000);
let dialogs = 0;
page.on("dialog", (dialog) => {
  dialogs += 1;
  void dialog.dismiss();
});

const steps = {
  async "every view is accessible, light and dark"() {
    await page.goto(`${url}/#token=${token}`);
    await settled(page);
    const views = ["graph", "graph&packet=PACKET", "moves", "members", "transcript"].map((view) => `/runs/${run}?session=s-1&view=${view}`);
    for (const path of [...views, "/inbox?view=dead", "/inbox?view=effects", "/inbox?view=tasks", "/agents", "/agents/sentinel", "/agents/nobody", "/log", "/issues", "/search", "/chat", "/no-such-page"]) {
      await page.goto(`${url}${path.replace("PACKET", hostile.split("-")[1])}`);
      await settled(page);
      await accessibleInBoth(page, path);
    }
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox").waitFor();
    await accessible(page, "the palette");
    await page.keyboard.press("Escape");
  },
  async "a script, an escape, a bidi trick and a long word stay text"() {
    for (const path of [`/packets/${hostile}`, `/runs/${run}?session=s-1&view=transcript`]) {
      await page.goto(`${url}${path}`);
      await settled(page);
      await page.getByText("<script>alert(1)</script>").first().waitFor();
      await page.getByText("\\u202e").first().waitFor();
      await page.getByText("\\u001b[2J").first().waitFor();
      const [wide, there] = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
      must(wide <= there, `${path} is ${wide} px wide on ${there}`);
    }
    must(dialogs === 0, "a script of a packet ran");
  },
  async "a sealed body is named as such, and its proof holds"() {
    await page.goto(`${url}/packets/${sealed}`);
    await page.getByText("Encrypted: this server holds no key.").first().waitFor();
    await page.locator('[data-proof="unpinned"]').waitFor();
    await accessible(page, "a sealed packet");
  },
  async "agents whose queues nobody can reach are unknown, and the keyboard opens one"() {
    await page.goto(`${url}/agents?state=silent`);
    await page.getByText("Queues are unknown. This server has no way to the queues.").waitFor();
    await page.getByRole("gridcell", { name: "unknown" }).first().waitFor();
    await page.getByRole("grid", { name: "Agents", exact: true }).focus();
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/agents\/[^/?]+$/);
    await page.getByText("Unknown.", { exact: true }).waitFor();
  },
  async "the log is verified by keyboard: whole, then changed, then without a key"() {
    await page.goto(`${url}/log`);
    const start = page.getByRole("button", { name: /^Verify (the log|again)$/ });
    await start.focus();
    await page.keyboard.press("Enter");
    await page.getByText("The log is whole").waitFor();
    must(await start.evaluate((one) => one === document.activeElement), "the focus left the button");
    await accessible(page, "a whole log");
    await ask("change the row");
    await page.keyboard.press("Enter");
    await page.getByText(/The log is not whole.*The first: Shard 0, entry \d+/).waitFor();
    await accessible(page, "a changed log");
    await ask("hide the key");
    await page.reload();
    await page.getByText("This server has no key of the log").waitFor();
    must((await start.count()) === 0, "a server without a key offers to verify");
    await ask("show the key");
  },
  async "a server that goes away leaves what is shown, and comes back by itself"() {
    await page.goto(`${url}/runs/${run}`);
    await page.locator(".live", { hasText: "Live" }).waitFor();
    await page.locator(".timeline canvas").waitFor(); // the stream may be faster than the session
    await ask("stop the server");
    await page.locator(".live", { hasText: "Reconnecting" }).waitFor();
    await page.locator(".timeline canvas").waitFor();
    await page.getByRole("heading", { name: run }).waitFor();
    await ask("start the server");
    await page.locator(".live", { hasText: "Live" }).waitFor();
  },
  async "a database that goes away while a page is open is told, what is shown stays, and the page goes on"() {
    await page.goto(`${url}/runs/${run}?session=s-1`);
    await page.locator(".live", { hasText: "Live" }).waitFor();
    await page.locator(".timeline canvas").waitFor();
    await ask("stop the database");
    await page.locator(".live", { hasText: "Log not readable" }).waitFor();
    await page.getByText("its database does not answer").waitFor();
    await page.locator(".timeline canvas").waitFor();
    await accessible(page, "a log that cannot be read");
    await ask("start the database");
    await page.locator(".live", { hasText: "Live" }).waitFor();
    await page.getByText("its database does not answer").waitFor({ state: "detached" });
    const before = Number(await page.getByRole("grid", { name: "Packets" }).getAttribute("aria-rowcount"));
    await ask("send a packet");
    await page.waitForFunction((count) => Number(document.querySelector('[role="grid"][aria-label="Packets"]').getAttribute("aria-rowcount")) > count, before);
  },
  async "a browser whose clock is wrong tells no packet of the future"() {
    for (const hours of [-3, 3]) {
      const other = await context.newPage();
      await other.clock.setFixedTime(Date.now() + hours * 3_600_000);
      await other.goto(`${url}/runs`);
      await other.getByRole("gridcell", { name: run }).waitFor();
      const times = await other.locator("main time").allInnerTexts();
      must(times.length > 0 && times.every((one) => /^(now|\d+ (s|min)( \d+ s)? ago|\d+\.\d s ago)$/.test(one)), `${hours} h: ${times}`);
      await other.close();
    }
  },
  async "a page opened while the server is away is the console's own, and comes back"() {
    const own = await browser.newContext({ serviceWorkers: "allow" });
    const other = await own.newPage();
    await other.goto(`${url}/#token=${token}`);
    await other.evaluate(() => navigator.serviceWorker.ready);
    await other.goto(`${url}/runs`);
    await other.getByRole("gridcell", { name: run }).waitFor();
    await ask("stop the server");
    await other.goto(`${url}/agents?sort=-role`);
    await other.getByText("The server does not answer").waitFor();
    must((await other.getByRole("link", { name: "Inbox" }).count()) === 1, "the navigation is there");
    await ask("start the server");
    await other.getByRole("grid", { name: "Agents", exact: true }).or(other.getByText("No agents")).first().waitFor();
    must(other.url() === `${url}/agents?sort=-role`, other.url());
    const kept = await other.evaluate(async () => {
      const paths = [];
      for (const name of await caches.keys()) for (const request of await (await caches.open(name)).keys()) paths.push(new URL(request.url).pathname);
      return paths;
    });
    must(kept.includes("/") && !kept.some((path) => path.startsWith("/api")), `${kept}`);
    await own.close();
  },
  async "a database that goes away is told as one, and the page comes back"() {
    await ask("stop the database");
    await page.goto(`${url}/runs`);
    await page.getByRole("alert").first().waitFor();
    must((await page.locator("main").innerText()).includes("database"), await page.locator("main").innerText());
    await ask("start the database");
    const [again, back] = [page.getByRole("button", { name: "Try again" }).first(), page.getByRole("gridcell", { name: run })];
    await again.or(back).first().waitFor();
    // The stream that connects again may be faster than the button, and takes it away.
    if (await again.isVisible()) await again.click({ timeout: 5_000 }).catch(() => undefined);
    await back.waitFor();
  },
  async "a browser that slept for an hour connects again"() {
    await page.addInitScript(() => delete window.SharedWorker); // its clock cannot be moved; the code of the stream is the same
    await page.clock.install();
    await page.goto(`${url}/runs/${run}`);
    await page.locator(".live", { hasText: "Live" }).waitFor();
    const again = page.waitForRequest((request) => request.url().includes("/stream"));
    await page.clock.fastForward("01:00:00");
    await page.clock.runFor(20_000);
    await again;
    await page.clock.resume();
    await page.locator(".live", { hasText: "Live" }).waitFor();
  },
  async "a page of an older build offers the new one, and a missing file is told"() {
    await page.route("**/api/v1/about", async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, json: { ...(await response.json()), version: "99.0.0" } });
    });
    const notice = page.getByText("The server is now version 99.0.0.");
    for (let tries = 0; tries < 10 && !(await notice.isVisible()); tries += 1) {
      await page.clock.runFor(61_000); // an answer that was still on its way is of the old version
      await notice.waitFor({ timeout: 5_000 }).catch(() => {});
    }
    await notice.waitFor();
    await page.unroute("**/api/v1/about");
    const before = faults.length;
    await page.route("**/assets/graph-*.js", (route) => route.fulfill({ status: 404, body: "gone" }));
    await page.goto(`${url}/runs/${run}?session=s-1&view=graph`);
    await page.getByText("This could not be loaded").waitFor();
    faults.length = before; // the console names the missing file, too
  },
};

await runSteps(steps, browser, page, faults);
