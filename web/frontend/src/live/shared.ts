/** Follow the log over the one stream of this browser; over a stream of this tab where shared workers are missing. */
import { authorization } from "../api/token";
import type { FromTab, ToTab } from "./messages";
import { follow, type Scope, type StreamHandlers } from "./stream";

/** Follow the entries of `scope` until the returned function is called. */
export function followShared(scope: Scope, handlers: StreamHandlers): () => void {
  const alone = () => {
    const following = follow(scope, handlers, authorization);
    return () => void following.end();
  };
  if (typeof SharedWorker === "undefined" || !navigator.locks) return alone();
  const worker = new SharedWorker(new URL("./worker.ts", import.meta.url), { type: "module", name: "apc-live" });
  const say = (message: FromTab) => worker.port.postMessage(message);
  const lock = crypto.randomUUID();
  let release = () => {};
  let isEnded = false;
  let end = () => {
    say({ kind: "leave" });
    release();
    worker.port.close();
  };
  // Its file may be missing, as after an update of the server.
  worker.onerror = () => {
    release();
    worker.port.close();
    if (!isEnded) end = alone();
  };
  worker.port.onmessage = ({ data }: MessageEvent<ToTab>) => {
    if (isEnded) return;
    if (data.kind === "entries") {
      handlers.entries(data.items);
      say({ kind: "taken" });
    } else if (data.kind === "reset") handlers.reset();
    else {
      handlers.state(data.state);
      if (data.state === "waiting") say({ kind: "headers", headers: authorization() }); // somebody may have logged in again
    }
  };
  void navigator.locks.request(lock, () => {
    if (isEnded) return;
    say({ kind: "join", scope, headers: authorization(), lock });
    return new Promise<void>((done) => (release = done));
  });
  return () => {
    isEnded = true;
    end();
  };
}
