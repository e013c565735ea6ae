/** What the chat reads and sends. */
import { queryOptions } from "@tanstack/react-query";
import { useEffect, useReducer, useState } from "react";
import { api, data } from "../../api/client";
import { authorization } from "../../api/token";
import { readEvents, type StreamState } from "../../live/stream";
import { sayLive } from "../../state/live";
import { reduceChat, type ChatEvent, type ChatState } from "../../state/chat";

const path = (id: string) => ({ params: { path: { id } } });

export const chats = queryOptions({ queryKey: ["chats"], queryFn: () => data(api.GET("/api/v1/chat/sessions")) });
export const history = (id: string) => data(api.GET("/api/v1/chat/sessions/{id}/history", path(id)));
export const begin = () => data(api.POST("/api/v1/chat/sessions"));
export const say = (id: string, content: string) => data(api.POST("/api/v1/chat/sessions/{id}/messages", { ...path(id), body: { content } }));
export const stop = (id: string) => data(api.POST("/api/v1/chat/sessions/{id}/stop", path(id)));
export const compress = (id: string) => data(api.POST("/api/v1/chat/sessions/{id}/compress", path(id)));
export const clear = (id: string) => data(api.POST("/api/v1/chat/sessions/{id}/clear", path(id)));
export const tasks = (id: string) => queryOptions({ queryKey: ["chat-tasks", id], queryFn: () => data(api.GET("/api/v1/chat/sessions/{id}/tasks", path(id))) });
export async function remove(id: string): Promise<void> {
  const { response } = await api.DELETE("/api/v1/chat/sessions/{id}", path(id));
  if (!response.ok) throw new Error(`The conversation was not deleted (${response.status}).`);
}

const PAUSE = 700;

/** Follow a conversation; a lost connection is opened again and begins with the whole state. */
export function useChat(id: string | undefined): { state: ChatState | null; live: StreamState; isGone: boolean } {
  const [state, dispatch] = useReducer(reduceChat, null);
  const [live, change] = useState<StreamState>("waiting");
  useEffect(() => {
    sayLive(id ? live : "off");
    return () => sayLive("off");
  }, [id, live]);
  const [isGone, leave] = useState(false);
  useEffect(() => {
    if (!id) return;
    const ended = new AbortController();
    async function once(): Promise<boolean> {
      const response = await fetch(`/api/v1/chat/sessions/${encodeURIComponent(id!)}/events`, {
        headers: { Accept: "text/event-stream", ...authorization() },
        signal: ended.signal,
      });
      if (response.status === 404) return false;
      if (!response.ok || !response.body) throw new Error(String(response.status));
      change("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return true;
        const found = readEvents(rest + value);
        rest = found.rest;
        for (const event of found.events) dispatch({ event: event.event, data: JSON.parse(event.data) } as ChatEvent);
      }
    }
    async function keep(): Promise<void> {
      while (!ended.signal.aborted) {
        const isThere = await once().catch(() => true);
        if (ended.signal.aborted) return;
        if (!isThere) return leave(true);
        change("waiting");
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
      }
    }
    void keep();
    return () => ended.abort();
  }, [id]);
  return { state, live, isGone };
}
