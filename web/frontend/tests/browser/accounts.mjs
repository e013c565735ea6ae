// Logging in by role: node tests/browser/accounts.mjs '{"url", "run", "password", "packet"}'. Exit code 1 = a step failed.
import { launch, openPage } from "./launch.mjs";
import { accessible, must, runSteps, settled } from "./steps.mjs";

const { url, run, password, packet } = JSON.parse(process.argv[2]);
const browser = await launch();
const { page, faults, context } = await openPage(browser, url, { ignoreHTTPSErrors: true });
page.setDefaultTimeout(60_000);

async function logIn(name, words = password) {
  await page.getByLabel("Name").first().fill(name);
  await page.getByLabel("Password").first().fill(words);
  await page.getByLabel("Password").first().press("Enter");
}

async function logOut() {
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Password").waitFor();
  if ((await page.getByLabel("Password").count()) !== 1) throw new Error("there are several forms");
}

const steps = {
  async "somebody unknown sees a form alone, and a wrong password is told"() {
    await page.goto(`${url}/runs/${run}`);
    await page.getByLabel("Password").first().waitFor();
    must((await page.getByLabel("Password").count()) === 1, "there is one form");
    await accessible(page, "the login");
    must(!(await page.locator("main").innerText()).includes(packet), "a packet is shown to nobody");
    await logIn("rita", "not the password of rita");
    await page.getByRole("alert").first().waitFor();
    must((await page.getByLabel("Name").first().inputValue()) === "rita", "the name is kept");
  },
  async "there is never more than one form, though every part of the page is refused first"() {
    const other = await context.newPage();
    await other.addInitScript(() => {
      window.most = 0;
      const count = () => (window.most = Math.max(window.most, document.querySelectorAll('input[type="password"]').length));
      new MutationObserver(count).observe(document, { childList: true, subtree: true });
    });
    const parts = ["/api/v1/runs", "/api/v1/agents", "/api/v1/dead"].map((path) => other.waitForResponse((one) => new URL(one.url()).pathname === path && one.status() === 401));
    await other.route("**/api/v1/about", async (route) => {
      await Promise.all(parts);
      await other.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
      await route.continue();
    });
    await other.goto(`${url}/`);
    await other.getByLabel("Password").first().waitFor();
    must((await other.evaluate(() => window.most)) === 1, "there were several forms for a moment");
    await other.close();
  },
  async "a reader logs in where they were, and reads bodies and proofs"() {
    await logIn("rita");
    await page.locator(".timeline canvas").waitFor();
    const [cookie] = await context.cookies();
    must(cookie.name.startsWith("__Host-") && cookie.httpOnly && cookie.secure, JSON.stringify(cookie));
    must((await page.evaluate(() => localStorage.getItem("apc.token"))) === null, "a token is kept");
    await page.goto(`${url}/packets/${packet}`);
    await page.locator('[data-proof="unpinned"]').waitFor();
    await accessible(page, "a packet for a reader");
    must((await page.getByText("Acts allowed").count()) === 0, "a reader has acts");
    await logOut();
  },
  async "a viewer reads columns, and is told what is not for them"() {
    await logIn("vera");
    await page.getByRole("button", { name: "Log out" }).waitFor();
    await page.goto(`${url}/runs/${run}`);
    await page.locator(".timeline canvas").waitFor();
    await page.goto(`${url}/packets/${packet}`);
    await settled(page);
    await accessible(page, "a packet for a viewer");
    const said = await page.locator("main").innerText();
    must(said.includes("role"), `the page does not say that this is not for the role: ${said}`);
    must(!said.includes("sealed") && !said.includes("cannot be read") && !said.includes("Not proven"), `a body that is withheld is told as sealed or broken: ${said}`);
    await logOut();
  },
};

await runSteps(steps, browser, page, faults);
