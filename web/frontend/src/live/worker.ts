/** The shared worker: the one stream of this browser. Its tabs give it the token; it never leaves this origin. */
import { Hub, type Tab } from "./hub";
import type { FromTab, ToTab } from "./messages";
import { follow } from "./stream";

let headers: Record<string, string> = {};
const hub = new Hub(follow, () => headers);

self.addEventListener("connect", (event) => {
  const port = (event as MessageEvent).ports[0]!;
  const say = (message: ToTab) => port.postMessage(message);
  let tab: Tab | undefined;
  const leave = () => {
    tab?.leave();
    tab = undefined;
    port.close();
  };
  port.onmessage = ({ data }: MessageEvent<FromTab>) => {
    if (data.kind === "headers" || data.kind === "join") headers = data.headers;
    if (data.kind === "taken") tab?.taken();
    if (data.kind === "leave") leave();
    if (data.kind !== "join") return;
    tab = hub.join(data.scope, {
      state: (state) => say({ kind: "state", state }),
      reset: () => say({ kind: "reset" }),
      entries: (items) => say({ kind: "entries", items }),
    });
    // A tab holds its lock as long as it lives, and no event tells that it is gone.
    void navigator.locks.request(data.lock, leave);
  };
});
