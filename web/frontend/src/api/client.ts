/** The client of the API: types from the OpenAPI document, the token, and errors in plain words. */
import createClient from "openapi-fetch";
import { hearClock } from "../lib/clock";
import { ask, dropToken } from "./token";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** A request that failed: `detail` says what happened and what to do, `field` which member of it was at fault. */
export class ApiProblem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly field: string | null = null,
  ) {
    super(detail);
  }
}

const OFFLINE = "Start it again with “apc ui”: this page continues by itself.";

export async function problemOf(response: Response, error: unknown): Promise<ApiProblem> {
  const body = (typeof error === "object" && error !== null ? error : {}) as Partial<Schemas["ProblemDocument"]>;
  // A token of another server of this machine: here people log in.
  if (body.code === "LOGIN") dropToken();
  const detail = body.detail ?? (response.status === 401 ? "The token is missing or no longer valid." : `The server answered ${response.status}.`);
  return new ApiProblem(response.status, body.code ?? "UNKNOWN", detail, body.field ?? null);
}

export const api = createClient<paths>({ baseUrl: "", fetch: ask });

const asked = new WeakMap<Request, number>();

api.use({
  onRequest({ request }) {
    asked.set(request, Date.now());
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
