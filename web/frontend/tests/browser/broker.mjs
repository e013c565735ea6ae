// The broker goes away while pages are open: node tests/browser/broker.mjs '{"url", "token"}'. Exit code 1 = a step failed.
import { ask, launch, openPage } from "./launch.mjs";
import { must, runSteps, settled } from "./steps.mjs";

const { url, token } = JSON.parse(process.argv[2]);
const browser = await launch();
const { context, page, faults } = await openPage(browser, url);
page.setDefaultTimeout(60_000);
const overview = await context.newPage();
const services = overview.locator("section.card", { has: overview.getByRole("heading", { name: "Services" }) });
const unknown = page.getByText(/Queues are unknown\./);

const steps = {
  async "with a broker both pages know the queues"() {
    await page.goto(`${url}/agents#token=${token}`);
    await overview.goto(`${url}/`);
    await settled(page);
    await page.getByRole("grid", { name: "Agents", exact: true }).waitFor();
    await services.getByText("running").first().waitFor();
    must((await unknown.count()) === 0, await page.locator("main").innerText());
  },
  async "without it they say so, keep what they show, and the log stays live"() {
    await ask("cut the broker");
    await unknown.waitFor();
    await services.getByText(/broker/).waitFor();
    await page.getByRole("grid", { name: "Agents", exact: true }).waitFor();
    await page.locator(".live", { hasText: "Live" }).waitFor();
    must((await services.getByText("stopped").count()) === 0, "a service that nobody can see is told as stopped");
  },
  async "they come back by themselves"() {
    await ask("mend the broker");
    await unknown.waitFor({ state: "detached" });
    await services.getByText("running").first().waitFor();
  },
};

await runSteps(steps, browser, page, faults);
