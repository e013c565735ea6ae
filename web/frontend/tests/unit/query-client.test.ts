import { QueryObserver } from "@tanstack/react-query";
import { describe, expect, it, vi } from "vitest";
import { ApiProblem } from "../../src/api/client";
import { makeQueryClient } from "../../src/api/query-client";
import { about } from "../../src/api/queries";

const OUT = new ApiProblem(401, "LOGIN", "log in");

/** A page whose parts fail like this, of somebody who was known a moment ago. */
async function pageAfter(problem: Error) {
  const client = makeQueryClient();
  const whoIsThere = vi.fn().mockResolvedValueOnce({}).mockRejectedValue(OUT);
  const shell = new QueryObserver(client, { queryKey: about.queryKey, queryFn: whoIsThere, retry: false, staleTime: Infinity });
  const leave = shell.subscribe(() => undefined);
  await vi.waitFor(() => expect(shell.getCurrentResult().data).toEqual({}));
  const part = { queryFn: () => Promise.reject(problem), retry: false };
  await Promise.allSettled(["runs", "agents"].map((name) => client.fetchQuery({ ...part, queryKey: [name] })));
  return { client, whoIsThere, shell, leave };
}

describe("a part that the server refuses", () => {
  it("makes the page ask once who is there, and not again for its own refusal", async () => {
    const { client, whoIsThere, shell, leave } = await pageAfter(OUT);
    await vi.waitFor(() => expect(shell.getCurrentResult().error).toBe(OUT));
    expect(client.isFetching({ queryKey: about.queryKey })).toBe(0);
    expect(whoIsThere).toHaveBeenCalledTimes(2);
    leave();
  });

  it("asks nothing for a failure that says nothing of who is there", async () => {
    const { client, whoIsThere, leave } = await pageAfter(new ApiProblem(404, "NOT_FOUND", "no such run"));
    expect([client.isFetching({ queryKey: about.queryKey }), whoIsThere.mock.calls.length]).toEqual([0, 1]);
    leave();
  });
});
