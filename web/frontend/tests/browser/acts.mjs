// Acts with the keyboard alone: node tests/browser/acts.mjs '{"url", "token", "question", "key"}'. Exit code 1 = a step failed.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { launch, openPage } from "./launch.mjs";

const { url, token, question, key } = JSON.parse(process.argv[2]);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await launch();
const { page, faults } = await openPage(browser, url);
page.setDefaultTimeout(20_000);
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

/** Let the process that started this one do something, and wait for it. */
async function ask(act) {
  console.log(`do: ${act}`);
  await answers.next();
}

/** Press Tab until `wanted` has the focus, as somebody without a mouse does. */
async function tabTo(wanted) {
  for (let step = 0; step < 80; step += 1) {
    await page.keyboard.press("Tab");
    if (await wanted.evaluate((one) => one === document.activeElement)) return;
  }
  throw new Error(`Tab never reaches ${wanted}`);
}

async function accessible(name) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"] }));
  const grave = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  if (grave.length > 0) throw new Error(`axe-core on ${name}: ${JSON.stringify(grave.map((one) => [one.id, one.nodes[0].failureSummary]))}`);
}

const steps = {
  async "a question is approved"() {
    await page.goto(`${url}/inbox#token=${token}`);
    await page.getByText("Ship build 7?").waitFor();
    await accessible("approvals");
    await tabTo(page.getByRole("textbox", { name: "Reason for red-1" }));
    await page.keyboard.type("looks right");
    await tabTo(page.getByRole("button", { name: "Approve" }));
    await page.keyboard.press("Enter");
    await page.getByText("Approved as alice.").waitFor();
    await page.getByText("No open questions").waitFor();
  },
  async "a dead letter is delivered again"() {
    await page.getByRole("tab", { name: "Approvals" }).focus();
    await page.keyboard.press("ArrowRight");
    const again = page.getByRole("button", { name: "Deliver again" });
    await again.waitFor();
    await accessible("dead letters");
    await tabTo(again);
    await page.keyboard.press("Enter");
    await page.getByText("No dead letters").waitFor();
  },
  async "a packet is opened, and its proof is green"() {
    await page.keyboard.press("Control+k");
    await page.getByRole("combobox").fill(question);
    await page.keyboard.press("Enter");
    await page.locator('[data-proof="unpinned"]').waitFor();
    await tabTo(page.locator("summary", { hasText: "Paste the key you trust" }));
    await page.keyboard.press("Enter");
    await tabTo(page.getByLabel("Public key of the log"));
    await page.keyboard.type(key);
    await tabTo(page.getByRole("button", { name: "Check with this key" }));
    await page.keyboard.press("Enter");
    await page.locator('[data-proof="proven"]').waitFor();
  },
  async "a changed row is red"() {
    await ask("change the row");
    await page.reload();
    await page.locator('[data-proof="false"]').waitFor();
  },
};

let failed = false;
for (const [name, step] of Object.entries(steps)) {
  try {
    await step();
    console.log(`ok: ${name}`);
  } catch (error) {
    failed = true;
    console.log(`FAILED: ${name}: ${error.message}`);
    if (process.env.APC_PAGE_FAILURES) await page.screenshot({ path: `${process.env.APC_PAGE_FAILURES}/failure.png`, fullPage: true });
    break;
  }
}
const known = [...new Set(faults)];
if (known.length > 0) console.log(`FAILED: ${known.join("\n")}`);
await browser.close();
process.exit(failed || known.length > 0 ? 1 : 0);
