/** The token of a link: kept in this browser, and proven to the server without being sent. */

const TOKEN = "apc.token";
const PROOF = "apc.proof";

/** Take the token of `#token=…`, and remove it from the address. */
export function takeToken(): void {
  const match = /(?:^|[#&])token=([^&]+)/.exec(location.hash);
  if (!match) return;
  setToken(decodeURIComponent(match[1]!));
  history.replaceState(history.state, "", location.pathname + location.search);
}

export function setToken(token: string): void {
  localStorage.setItem(TOKEN, token.trim());
  localStorage.removeItem(PROOF);
}

/** Forget it: here people log in. */
export function dropToken(): void {
  localStorage.removeItem(TOKEN);
  localStorage.removeItem(PROOF);
}

export function authorization(): Record<string, string> {
  const proof = localStorage.getItem(PROOF);
  return proof ? { Authorization: `Bearer ${proof}` } : {};
}

/** The start of the server that a refusal names; null where nothing is to be proven. */
export function startOf(response: Response): string | null {
  if (response.status !== 401) return null;
  return /^Bearer start="([0-9a-f]{64})"$/.exec(response.headers.get("WWW-Authenticate") ?? "")?.[1] ?? null;
}

/**
 * What proves the token to one start of the server on one port (`proof_of` of the server). While the server is away
 * another program may listen there: what it hears is of no use anywhere.
 */
export async function proofOf(token: string, start: string, port: string): Promise<string> {
  const bytes = new TextEncoder();
  const key = await crypto.subtle.importKey("raw", bytes.encode(token), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  const signature = await crypto.subtle.sign("HMAC", key, bytes.encode(`${start}:${port}`));
  return Array.from(new Uint8Array(signature), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Prove the token to the server that refused what was `sent`; false when there is nothing new to say. */
async function prove(start: string, sent: string | undefined): Promise<boolean> {
  const token = localStorage.getItem(TOKEN);
  if (!token) return false;
  const proof = await proofOf(token, start, location.port || (location.protocol === "https:" ? "443" : "80"));
  localStorage.setItem(PROOF, proof);
  return authorization().Authorization !== sent;
}

/** Ask, and once more with a proof when the server has started again since the last one. */
export async function ask(request: Request): Promise<Response> {
  const again = request.clone();
  const sent = authorization().Authorization;
  const response = await fetch(signed(request));
  const start = startOf(response);
  return start !== null && (await prove(start, sent)) ? fetch(signed(again)) : response;
}

/** With the token of a new link: prove it first, so that the page has nothing to ask twice. A server that is away is asked later. */
export async function greet(): Promise<void> {
  if (localStorage.getItem(TOKEN) && !localStorage.getItem(PROOF)) await ask(new Request("/api/v1/about")).catch(() => undefined);
}

function signed(request: Request): Request {
  for (const [name, value] of Object.entries(authorization())) request.headers.set(name, value);
  return request;
}
