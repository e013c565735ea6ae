/** What tabs and the shared worker say to each other. */
import type { Schemas } from "../api/client";
import type { Scope, StreamState } from "./stream";

export type FromTab =
  | { kind: "join"; scope: Scope; headers: Record<string, string>; lock: string }
  | { kind: "headers"; headers: Record<string, string> }
  | { kind: "taken" }
  | { kind: "leave" };

export type ToTab = { kind: "state"; state: StreamState } | { kind: "reset" } | { kind: "entries"; items: Schemas["FoldEntry"][] };
