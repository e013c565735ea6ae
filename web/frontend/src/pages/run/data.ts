/** What the run page shows: the session now or after an entry, and its timeline. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useReducer } from "react";
import { api, data, type Schemas } from "../../api/client";
import { EMPTY, reduceTimeline, type Timeline } from "../../state/timeline";

const MOST_PAGES = 10;
/** Read the columns again at most once in this many milliseconds. */
const RELOAD = 3000;

async function pages(session_id: string): Promise<Schemas["TimelineColumns"][]> {
  const found: Schemas["TimelineColumns"][] = [];
  let after: string | undefined;
  do {
    const page = await data(api.GET("/api/v1/sessions/{session_id}/timeline", { params: { path: { session_id }, query: { after } } }));
    found.push(page);
    after = page.next ?? undefined;
  } while (after !== undefined && found.length < MOST_PAGES);
  return found;
}

export interface LiveTimeline {
  timeline: Timeline;
  isLoaded: boolean;
  error: unknown;
  take: (entries: Schemas["FoldEntry"][]) => void;
}

/** The timeline of a session, kept up to date by the entries given to `take`. */
export function useTimeline(sessionId: string): LiveTimeline {
  const client = useQueryClient();
  const [timeline, dispatch] = useReducer(reduceTimeline, EMPTY);
  const answer = useQuery({ queryKey: ["timeline", sessionId], queryFn: () => pages(sessionId), staleTime: Infinity });
  useEffect(() => {
    if (answer.data) dispatch({ kind: "columns", pages: answer.data });
  }, [answer.data]);
  useEffect(() => {
    if (!timeline.isPartial) return;
    const timer = setTimeout(() => void client.invalidateQueries({ queryKey: ["timeline", sessionId] }), RELOAD);
    return () => clearTimeout(timer);
  }, [client, sessionId, timeline.isPartial]);
  const take = useCallback((entries: Schemas["FoldEntry"][]) => dispatch({ kind: "entries", entries }), []);
  return { timeline, isLoaded: answer.data !== undefined, error: answer.error, take };
}
