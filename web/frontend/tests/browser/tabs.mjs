// Tabs of one browser share a stream: node tests/browser/tabs.mjs '{"url", "token", "run"}'. Exit code 1 = a step failed.
import { ask, launch, openPage } from "./launch.mjs";
import { runSteps } from "./steps.mjs";

const { url, token, run } = JSON.parse(process.argv[2]);
const browser = await launch();
const { context, page, faults } = await openPage(browser, url);
const live = (tab) => tab.locator(".live", { hasText: "Live" }).waitFor();
const rows = async (tab) => Number(await tab.getByRole("grid", { name: "Packets" }).getAttribute("aria-rowcount"));
let tabs;

const steps = {
  async "three tabs have one stream"() {
    await page.goto(`${url}/runs/${run}#token=${token}`);
    await live(page);
    tabs = [page, await context.newPage(), await context.newPage()];
    await tabs[1].goto(`${url}/runs/${run}`);
    await tabs[2].goto(`${url}/runs`);
    await Promise.all(tabs.map(live));
    await ask("one stream is open");
  },
  async "each tab shows what comes"() {
    const before = await rows(page);
    await ask("send a packet");
    for (const tab of tabs.slice(0, 2)) await tab.waitForFunction((count) => Number(document.querySelector('[role="grid"][aria-label="Packets"]')?.getAttribute("aria-rowcount")) > count, before);
  },
  async "the others go on when a tab closes"() {
    await tabs[0].close();
    const before = await rows(tabs[1]);
    await ask("send a packet");
    await tabs[1].waitForFunction((count) => Number(document.querySelector('[role="grid"][aria-label="Packets"]')?.getAttribute("aria-rowcount")) > count, before);
    await ask("one stream is open");
    await tabs[1].close();
    await tabs[2].close();
    await ask("no stream is open");
  },
  async "a browser without shared workers has a stream a tab"() {
    const old = await browser.newContext();
    await old.addInitScript(() => delete window.SharedWorker);
    for (const path of [`/runs/${run}#token=${token}`, "/runs"]) {
      const tab = await old.newPage();
      await tab.goto(`${url}${path}`);
      await live(tab);
    }
    await ask("two streams are open");
  },
};

await runSteps(steps, browser, page, faults);
