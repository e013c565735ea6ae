/** What the pages have read, and when it is read again. */
import { hashKey, QueryCache, QueryClient } from "@tanstack/react-query";
import { againAfter, ApiProblem } from "./client";
import { about } from "./queries";

const ABOUT = hashKey(about.queryKey);

/** Return the client of the page. When one route does not know who asks, none does: it then asks at once who that is. */
export function makeQueryClient(): QueryClient {
  const cache = new QueryCache({
    onError(error, query) {
      if (error instanceof ApiProblem && error.status === 401 && query.queryHash !== ABOUT) void client.invalidateQueries({ queryKey: about.queryKey }, { cancelRefetch: false });
    },
  });
  const client = new QueryClient({
    queryCache: cache,
    defaultOptions: {
      queries: {
        staleTime: 5_000,
        retry: (failures, error) => !(error instanceof ApiProblem && error.status < 500) && failures < 2,
        refetchInterval: (query) => againAfter(query.state.error, false),
      },
    },
  });
  return client;
}
