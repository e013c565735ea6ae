/** The stream that the open page follows, and whether it is alive. */
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useSyncExternalStore } from "react";
import type { Schemas } from "../api/client";
import { followShared } from "../live/shared";
import type { Scope, StreamState } from "../live/stream";

let state: StreamState = "off";
const listeners = new Set<() => void>();

/** Say how the stream of the open page is. */
export function sayLive(next: StreamState): void {
  state = next;
  for (const listener of listeners) listener();
}

export function useLive(): StreamState {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => state,
  );
}

/** At most one refresh in this many milliseconds. */
const REFRESH = 1000;

/** Follow new entries; the queries whose keys begin with one of `subjects` are read again as entries come. */
export function useStream(
  scope: Scope,
  subjects: readonly string[],
  take?: (entries: Schemas["FoldEntry"][]) => void,
): void {
  const client = useQueryClient();
  const latest = useRef({ subjects, take });
  useEffect(() => {
    latest.current = { subjects, take };
  });
  const { session_id } = scope;
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const refresh = (all: boolean) => {
      const names = new Set(latest.current.subjects);
      const predicate = (query: { queryKey: readonly unknown[] }) => names.has(String(query.queryKey[0])) && (all || query.queryKey[0] !== "timeline");
      void client.invalidateQueries({ predicate });
    };
    const later = () => {
      timer ??= setTimeout(() => {
        timer = undefined;
        refresh(false);
      }, REFRESH);
    };
    const stop = followShared(session_id ? { session_id } : {}, {
      state: sayLive,
      reset: () => refresh(true),
      entries(items) {
        if (items.length === 0) return;
        latest.current.take?.(items);
        later();
      },
    });
    return () => {
      clearTimeout(timer);
      stop();
      sayLive("off");
    };
  }, [client, session_id]);
}
