// A run is watched to its end: node tests/browser/watch.mjs '{"url", "token", "run", "key"}'. Exit code 1 = a step failed.
import { ask, launch, openPage } from "./launch.mjs";
import { accessibleInBoth, must, runSteps, settled } from "./steps.mjs";

const { url, token, run, key } = JSON.parse(process.argv[2]);
const browser = await launch();
const { page, faults } = await openPage(browser, url);
page.setDefaultTimeout(60_000);
const grid = page.getByRole("grid", { name: "Packets" });
const rows = async () => Number(await grid.getAttribute("aria-rowcount"));
let refused;

/** Wait until the table has more rows than `count`: nothing but the stream can bring them. */
async function more(count) {
  await page.waitForFunction((before) => Number(document.querySelector('[role="grid"][aria-label="Packets"]').getAttribute("aria-rowcount")) > before, count);
}

/** Whether the newest packet is in view. */
function isAtEnd() {
  const box = document.querySelector('[role="grid"][aria-label="Packets"]');
  return box.scrollHeight > box.clientHeight && box.scrollHeight - box.scrollTop - box.clientHeight < 68;
}

const steps = {
  async "a run that goes on is found, and opens live"() {
    await page.goto(`${url}/runs#token=${token}`);
    await settled(page);
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox").fill(run);
    await page.getByRole("option", { name: / Run(, in progress)?$/ }).waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL(`**/runs/${run}`);
    await page.locator(".live", { hasText: "Live" }).waitFor();
    await grid.waitFor();
  },
  async "its packets come in"() {
    await page.evaluate(() => (window.isTheSamePage = true));
    for (let times = 0; times < 3; times += 1) await more(await rows());
    await page.waitForFunction(isAtEnd);
  },
  async "the table stays where its reader has scrolled to"() {
    await grid.evaluate((box) => box.scrollTo(0, 0));
    await more(await rows());
    must(await grid.evaluate((box) => box.scrollTop === 0), "the table has moved under its reader");
    await grid.evaluate((box) => box.scrollTo(0, box.scrollHeight));
    await more(await rows());
    await page.waitForFunction(isAtEnd);
  },
  async "it ends with its promoted model, on the same page"() {
    await page.getByRole("heading", { name: "Outcome" }).waitFor({ timeout: 400_000 });
    await page.getByText("won against").waitFor();
    must(await page.evaluate(() => window.isTheSamePage), "the page was loaded again");
  },
  async "the slider goes back to where it was open"() {
    await page.getByLabel("Time", { exact: true }).focus();
    await page.keyboard.press("Home");
    await page.getByText("The past.").waitFor();
    await page.getByRole("button", { name: "Return to now" }).click();
    await page.getByText("The past.").waitFor({ state: "detached" });
  },
  async "a refused transfer says why"() {
    const headers = { Authorization: `Bearer ${token}` };
    const [session] = (await (await fetch(`${url}/api/v1/sessions?run_id=${run}`, { headers })).json()).items;
    const asked = new URLSearchParams({ session_id: session.session_id, packet_type: "TRANSFER", verdict: "refused" });
    [refused] = (await (await fetch(`${url}/api/v1/packets?${asked}`, { headers })).json()).items;
    must(refused, "no TRANSFER was refused");
    await page.goto(`${url}/packets/${refused.packet_id}`);
    await page.getByText("What would pass").waitFor();
    await settled(page);
  },
  async "its proof is green with the log's key"() {
    await page.getByText("Paste the key you trust", { exact: true }).click();
    await page.getByLabel("Public key of the log").fill(key);
    await page.getByRole("button", { name: "Check with this key" }).click();
    await page.locator('[data-proof="proven"]').waitFor();
  },
  async "its decisions and the path of a packet are accessible"() {
    for (const path of ["/arbitrations", `/packets/${refused.packet_id}`]) {
      await page.goto(`${url}${path}`);
      await settled(page);
      await page.locator("main svg.chart, main svg.lifecycle").first().waitFor();
      await accessibleInBoth(page, path);
    }
    await page.locator('[data-proof="proven"]').waitFor();
  },
  async "a changed row is red"() {
    await ask("change the row");
    await page.reload();
    await page.locator('[data-proof="false"]').waitFor();
  },
};

await runSteps(steps, browser, page, faults);
