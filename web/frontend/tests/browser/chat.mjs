// A conversation until its earlier parts are folded: node tests/browser/chat.mjs '{"url", "token"}'. Exit code 1 = a step failed.
import { launch, openPage } from "./launch.mjs";
import { accessibleInBoth, runSteps, settled } from "./steps.mjs";

const { url, token } = JSON.parse(process.argv[2]);
const browser = await launch();
const { page, faults } = await openPage(browser, url);
page.setDefaultTimeout(60_000);
const box = page.getByLabel("Message");
const fold = page.getByRole("button", { name: /out of the agent's view/ });

/** Say something, and wait until it is answered and the agent is ready for the next. */
async function say(words) {
  await box.fill(words);
  await box.press("Enter");
  await page.locator(`.said.user:has-text("${words.slice(0, 8)}") ~ li`).last().waitFor();
  await page.getByRole("button", { name: "Send" }).waitFor();
}

const steps = {
  async "a conversation with a tool call is accessible"() {
    await page.goto(`${url}/chat#token=${token}`);
    await settled(page);
    await box.fill("hello");
    await box.press("Enter");
    await page.getByText("One word after the other.").waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
    await box.fill("spell sea");
    await box.press("Enter");
    await page.getByText("Result of a tool").first().waitFor();
    await page.getByRole("button", { name: "Send" }).waitFor();
    await page.getByText("Result of a tool").first().click();
    await accessibleInBoth(page, "a conversation");
  },
  async "earlier parts fold, open by keyboard, and stay accessible"() {
    for (let time = 0; time < 10 && (await fold.count()) === 0; time += 1) {
      await say(`turn ${time}: ${"and so on ".repeat(20)}`);
      const compress = page.getByRole("button", { name: "Compress" });
      if (await compress.isEnabled()) await compress.click();
      await page.getByRole("button", { name: "Send" }).waitFor();
    }
    await fold.waitFor();
    await accessibleInBoth(page, "folded parts");
    await fold.focus();
    await page.keyboard.press("Enter");
    await page.locator(".thread.earlier").waitFor();
    await accessibleInBoth(page, "folded parts that are open");
  },
};

await runSteps(steps, browser, page, faults);
