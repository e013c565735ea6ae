/** Runs the agent until SIGTERM or SIGINT. Anyone who started it starts it again when it fails; nothing is lost. */

import { Broker } from "./broker.mjs";
import { handlers } from "./review.mjs";
import { Schemas } from "./schemas.mjs";
import { readSettings } from "./settings.mjs";
import { Worker } from "./worker.mjs";

const log = (event) => console.log(JSON.stringify(event));

async function main() {
  const settings = readSettings(process.env);
  let end;
  const ended = new Promise((resolve) => (end = resolve));
  for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => end(undefined));
  const broker = await Broker.connect(settings.url, settings.brokerUser, end);
  const worker = new Worker(settings, broker, new Schemas(settings.schemas), handlers, log);
  await worker.start(end);
  log({ event: "ready", agent_id: settings.actor.agent_id });
  const failure = await ended;
  if (failure !== undefined) throw failure;
  await worker.stop();
  await broker.close();
}

main().catch((error) => {
  console.error(`node-agent: ${error.message}${error.cause ? `: ${error.cause.message}` : ""}`);
  process.exit(1);
});
