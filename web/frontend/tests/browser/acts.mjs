// Acts with the keyboard alone: node tests/browser/acts.mjs '{"url", "token", "question", "key"}'. Exit code 1 = a step failed.
import { ask, launch, openPage } from "./launch.mjs";
import { accessible, runSteps } from "./steps.mjs";

const { url, token, question, key } = JSON.parse(process.argv[2]);
const browser = await launch();
const { page, faults } = await openPage(browser, url);
page.setDefaultTimeout(60_000);

/** Press Tab until `wanted` has the focus, as somebody without a mouse does. */
async function tabTo(wanted) {
  for (let step = 0; step < 80; step += 1) {
    await page.keyboard.press("Tab");
    if (await wanted.evaluate((one) => one === document.activeElement)) return;
  }
  throw new Error(`Tab never reaches ${wanted}`);
}

const steps = {
  async "a question is approved"() {
    await page.goto(`${url}/inbox#token=${token}`);
    await page.getByText("Ship build 7?").waitFor();
    await accessible(page, "approvals");
    await tabTo(page.getByRole("textbox", { name: "Share in percent" }));
    await page.keyboard.type("200");
    await tabTo(page.getByRole("combobox", { name: "<img src=x onerror=alert(1)>" }));
    await page.keyboard.press("s");
    await tabTo(page.getByRole("textbox", { name: "Reason for red-1" }));
    await page.keyboard.type("looks right");
    await tabTo(page.getByRole("button", { name: "Approve" }));
    await page.keyboard.press("Enter");
    await page.getByText("At most 100.").waitFor();
    await accessible(page, "a refused field");
    await page.keyboard.press("Control+a");
    await page.keyboard.type("20");
    await tabTo(page.getByRole("button", { name: "Approve" }));
    await page.keyboard.press("Enter");
    await page.getByText("Approved as alice.").waitFor();
    await page.getByText("No open questions").waitFor();
    await page.getByRole("button", { name: "Answered" }).click();
    await page.locator("dt", { hasText: "Share in percent" }).waitFor();
    await accessible(page, "an answer with fields");
  },
  async "a dead letter is delivered again"() {
    await page.getByRole("tab", { name: "Approvals" }).focus();
    await page.keyboard.press("ArrowRight");
    const again = page.getByRole("button", { name: "Deliver again" });
    await again.waitFor();
    await accessible(page, "dead letters");
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

await runSteps(steps, browser, page, faults);
