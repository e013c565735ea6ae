// The page over a real log: node tests/browser/journey.mjs '{"url", "token", "run", "key", "refused"?}'. Exit code 1 = a step failed.
import { launch, openPage } from "./launch.mjs";
import { accessible, must, runSteps, settled } from "./steps.mjs";

const { url, token, run, key, refused } = JSON.parse(process.argv[2]);
const browser = await launch();
const { page, faults } = await openPage(browser, url, { bypassCSP: false });
page.setDefaultTimeout(60_000);

async function settledAndAccessible(name) {
  await settled(page);
  await accessible(page, name);
}

const steps = {
  async "the token leaves the address"() {
    await page.goto(`${url}/#token=${token}`);
    await settled(page);
    must(!page.url().includes("token"), page.url());
  },
  async "every page is accessible, light and dark"() {
    for (const path of ["/", "/runs", `/runs/${run}`, `/runs/${run}?view=scores`, `/runs/${run}?view=transcript`, "/inbox", "/arbitrations"]) {
      await page.goto(`${url}${path}`);
      await settledAndAccessible(`${path}, light`);
      await page.getByRole("button", { name: "Use dark colours" }).click();
      await settledAndAccessible(`${path}, dark`);
      await page.getByRole("button", { name: "Use light colours" }).click();
    }
  },
  async "the palette opens the run by keyboard"() {
    await page.goto(`${url}/`);
    await settled(page);
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox").fill(run);
    await page.getByRole("option", { name: new RegExp(`^${run} Run`) }).waitFor();
    await page.keyboard.press("Enter");
    await page.waitForURL(`**/runs/${run}`);
    await page.locator(".timeline canvas").waitFor();
  },
  async "the keyboard selects a packet on the timeline and in the table"() {
    await page.locator(".timeline").focus();
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    await page.waitForURL(/packet=\d+/);
    await page.locator('[role="row"][aria-selected="true"]').waitFor();
  },
  async "a click, arrow keys and zoom work on the lineage"() {
    await page.goto(`${url}/runs/${run}?view=graph`);
    const graph = page.getByRole("application", { name: "Lineage of" });
    const { height } = await graph.boundingBox();
    const lanes = await page.locator(".graph .lanes span").count();
    await graph.click({ position: { x: 10, y: height / lanes / 2 } }); // the first packet: no depth, the first lane
    await page.waitForURL(/packet=\d+/);
    await page.locator(".react-flow__node").first().waitFor();
    const first = page.url();
    await graph.focus();
    await page.keyboard.press("ArrowRight");
    await page.waitForURL((now) => /packet=\d+/.test(now.href) && now.href !== first);
    await page.keyboard.press("+");
    await page.getByRole("button", { name: "Show all" }).click();
    await graph.hover({ position: { x: 300, y: 20 } });
    await page.keyboard.down("Control");
    await page.mouse.wheel(0, -120);
    await page.keyboard.up("Control");
    await page.getByRole("button", { name: "Show all" }).waitFor();
  },
  async "the slider shows the past, and the address reproduces it"() {
    await page.getByLabel("Time", { exact: true }).focus();
    await page.keyboard.press("Home");
    await page.waitForURL(/at=\d+/);
    await page.reload();
    await page.getByText("The past.").waitFor();
    await page.getByRole("button", { name: "Return to now" }).click();
    await page.getByText("The past.").waitFor({ state: "detached" });
  },
  async "a refused packet says why in words"() {
    await page.goto(`${url}/packets/${refused}`);
    await page.getByText("What would pass").waitFor();
    await settledAndAccessible("a packet, light");
  },
  async "a proof is amber without a key, green with it, red with another"() {
    await page.locator('[data-proof="unpinned"]').waitFor();
    await page.getByText("Paste the key you trust", { exact: true }).click();
    await page.getByLabel("Public key of the log").fill(key);
    await page.getByRole("button", { name: "Check with this key" }).click();
    await page.locator('[data-proof="proven"]').waitFor();
    await page.getByLabel("Public key of the log").fill(key.replace(/\+[0-9a-f]{8}\+/, "+00000000+"));
    await page.getByRole("button", { name: "Check with this key" }).click();
    await page.locator('[data-proof="false"]').waitFor();
    await page.getByLabel("Public key of the log").fill(key);
    await page.getByRole("button", { name: "Check with this key" }).click();
    await page.locator('[data-proof="proven"]').waitFor();
  },
  async "a changed entry, body or page is red"() {
    const changes = [
      ["**/proof?*", (proof) => ({ ...proof, entry: proof.entry.replace('"INTER_AGENT"', '"INTRA_AGENT"') })],
      ["**/proof?*", (proof) => ({ ...proof, body: btoa("{}") })],
      [`**/api/v1/packets/${refused}`, (packet) => ({ ...packet, sender: "somebody-else" })],
    ];
    for (const [pattern, change] of changes) {
      await page.route(pattern, async (route) => {
        const response = await route.fetch();
        await route.fulfill({ response, json: change(await response.json()) });
      });
      await page.goto(`${url}/packets/${refused}`);
      await page.locator('[data-proof="false"]').waitFor();
      await page.unrouteAll({ behavior: "ignoreErrors" });
    }
  },
  async "a packet that is not there, a wrong token and a silent server have words"() {
    await page.goto(`${url}/packets/00000000-0000-4000-8000-000000000000`);
    await page.getByText("Not found").waitFor();
    await page.goto(`${url}/runs/no-such-run`);
    await page.getByText("There is no such run").waitFor();
    await page.goto(`${url}/runs#token=wrong`);
    await page.getByText("This link is old").waitFor();
    await page.goto(`${url}/runs#token=${token}`);
    await settled(page);
    await page.route("**/api/**", (route) => route.abort());
    await page.goto(`${url}/runs/${run}`);
    await page.getByText("The server does not answer").first().waitFor();
    await page.unroute("**/api/**");
    await page.locator(".timeline canvas").waitFor();
  },
};

await runSteps(steps, browser, page, faults);
