/** What the agent reads of its environment. */

import { readFileSync } from "node:fs";
import { createHash, createPrivateKey, createPublicKey } from "node:crypto";
import { fileURLToPath } from "node:url";

/** Throws an Error that names the variable which is missing or wrong. */
export function readSettings(environment) {
  const url = new URL(required(environment, "APC_AMQP_URL"));
  return {
    url: url.href,
    brokerUser: decodeURIComponent(url.username) || "guest",
    actor: {
      agent_id: required(environment, "APC_AGENT_ID"),
      role: required(environment, "APC_AGENT_ROLE"),
      swarm_id: required(environment, "APC_AGENT_SWARM"),
    },
    schemas: environment.APC_SCHEMAS || fileURLToPath(new URL("../../contracts/schemas", import.meta.url)),
    key: environment.APC_AGENT_KEY_FILE ? readKey(environment.APC_AGENT_KEY_FILE) : undefined,
  };
}

/** An Ed25519 key in PEM, with the id under which `apc key register` makes it known. */
function readKey(path) {
  const privateKey = createPrivateKey(readFileSync(path));
  const raw = Buffer.from(createPublicKey(privateKey).export({ format: "jwk" }).x, "base64url");
  return { privateKey, id: createHash("sha256").update(raw).digest("hex").slice(0, 16) };
}

function required(environment, name) {
  const value = environment[name];
  if (!value) throw new Error(`${name} is not set`);
  return value;
}
