/** What the run page shows: the session now or after an entry, and its timeline. */
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useReducer, useRef } from "react";
import { api, data, type Schemas } from "../../api/client";
import { EMPTY, reduceTimeline, type Timeline } from "../../state/timeline";

const MOST_PAGES = 10;
/** Packets that a page shows. */
export const MOST_PACKETS = MOST_PAGES * 100_000;
/** Read the columns again at most once in this many milliseconds. */
const RELOAD = 3000;

type Show = (columns: Schemas["TimelineColumns"], isFirst: boolean, isLast: boolean) => void;

/** Read the columns page by page; `show` gets each as it comes, until the signal ends it. */
async function pages(session_id: string, signal: AbortSignal, show: Show): Promise<Schemas["TimelineColumns"][]> {
  const found: Schemas["TimelineColumns"][] = [];
  let after: string | undefined;
  do {
    const page = await data(api.GET("/api/v1/sessions/{session_id}/timeline", { params: { path: { session_id }, query: { after } }, signal }));
    signal.throwIfAborted();
    found.push(page);
    after = found.length < MOST_PAGES ? (page.next ?? undefined) : undefined;
    show(page, found.length === 1, after === undefined);
  } while (after !== undefined);
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
  // The first time each page is shown as it comes; later ones replace all at once, so that nothing flickers.
  const shown = useRef<unknown>(null);
  const answer = useQuery({
    queryKey: ["timeline", sessionId],
    queryFn: async ({ signal }) => {
      const isFirst = shown.current === null;
      const found = await pages(sessionId, signal, (columns, begins, isLast) => isFirst && dispatch({ kind: "page", columns, isFirst: begins, isLast }));
      if (isFirst) shown.current = found;
      return found;
    },
    staleTime: Infinity,
    structuralSharing: false,
  });
  useEffect(() => {
    if (!answer.data || answer.data === shown.current) return;
    shown.current = answer.data;
    dispatch({ kind: "columns", pages: answer.data });
  }, [answer.data]);
  useEffect(() => {
    if (!timeline.isPartial) return;
    const timer = setTimeout(() => void client.invalidateQueries({ queryKey: ["timeline", sessionId] }), RELOAD);
    return () => clearTimeout(timer);
  }, [client, sessionId, timeline.isPartial]);
  const take = useCallback((entries: Schemas["FoldEntry"][]) => dispatch({ kind: "entries", entries }), []);
  return { timeline, isLoaded: answer.data !== undefined, error: answer.error, take };
}
