/** The client of the API: types from the OpenAPI document, the token, and errors in plain words. */
import createClient from "openapi-fetch";
import { hearClock } from "../lib/clock";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

const TOKEN = "apc.token";

/** Take the token of `#token=…`, and remove it from the address. */
export function takeToken(): void {
  const match = /(?:^|[#&])token=([^&]+)/.exec(location.hash);
  if (!match) return;
  localStorage.setItem(TOKEN, decodeURIComponent(match[1]!));
  history.replaceState(history.state, "", location.pathname + location.search);
}

export function setToken(token: string): void {
  localStorage.setItem(TOKEN, token.trim());
}

export function authorization(): Record<string, string> {
  const token = localStorage.getItem(TOKEN);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** A request that failed: `detail` says what happened and what to do. */
export class ApiProblem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
  ) {
    super(detail);
  }
}

const OFFLINE = "Start it again with “apc ui”: this page continues by itself.";

export async function problemOf(response: Response, error: unknown): Promise<ApiProblem> {
  const body = (typeof error === "object" && error !== null ? error : {}) as Partial<Schemas["ProblemDocument"]>;
  // A token of another server of this machine: here people log in.
  if (body.code === "LOGIN") localStorage.removeItem(TOKEN);
  const detail = body.detail ?? (response.status === 401 ? "The token is missing or no longer valid." : `The server answered ${response.status}.`);
  return new ApiProblem(response.status, body.code ?? "UNKNOWN", detail);
}

export const api = createClient<paths>({ baseUrl: "" });

const asked = new WeakMap<Request, number>();

api.use({
  onRequest({ request }) {
    asked.set(request, Date.now());
    for (const [name, value] of Object.entries(authorization())) request.headers.set(name, value);
    return request;
  },
  onResponse({ request, response }) {
    const arrived = Date.now();
    hearClock(response.headers.get("Date"), asked.get(request) ?? arrived, arrived);
  },
  onError() {
    return new ApiProblem(0, "OFFLINE", OFFLINE);
  },
});

/** Ask again in 3 s while the server or its database is away, so that it comes back without a reload; else after `otherwise`. */
export function againAfter(error: unknown, otherwise: number | false): number | false {
  return error instanceof ApiProblem && (error.status === 0 || error.code === "DATABASE_AWAY") ? 3_000 : otherwise;
}

/** The data of an answer. Throws ApiProblem for everything else. */
export async function data<T>(answer: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data: found, error, response } = await answer;
  if (!response.ok || found === undefined) throw await problemOf(response, error);
  return found;
}
