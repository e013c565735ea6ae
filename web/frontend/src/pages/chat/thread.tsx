/** The messages of a conversation, and the answer that is being made. */
import { useEffect, useRef, useState } from "react";
import { Badge, Foreign } from "../../parts/bits";
import { Markdown } from "../../parts/markdown";
import { Failed, Loading } from "../../parts/states";
import { useQuery } from "@tanstack/react-query";
import { count, plural, time } from "../../lib/format";
import type { Schemas } from "../../api/client";
import { earlier, type ChatState } from "../../state/chat";
import { history } from "./data";

const TONES: Record<string, "good" | "bad" | "neutral" | "accent"> = { SUCCESS: "good", ERROR: "bad", REFUSED: "bad", CANCELLED: "neutral", RUNNING: "accent", TASK_STARTED: "accent" };
const WORDS: Record<string, string> = { SUCCESS: "done", ERROR: "failed", REFUSED: "refused", CANCELLED: "cancelled", RUNNING: "running", TASK_STARTED: "goes on as a task" };

export function Actions({ actions }: { actions: readonly Schemas["ChatAction"][] }) {
  if (actions.length === 0) return null;
  return (
    <ul className="row" aria-label="Tools">
      {actions.map((one, at) => (
        <li key={at}>
          <Badge tone={TONES[one.status] ?? "neutral"}>
            <span className="dot" />
            <span className="mono">{one.name}</span> {WORDS[one.status] ?? one.status.toLowerCase()}
          </Badge>
        </li>
      ))}
    </ul>
  );
}

/** What the agent sees no longer; it opens to what was said. */
function Folded({ state }: { state: ChatState }) {
  const [isOpen, open] = useState(false);
  const { session_id: id, revision, hidden, props } = state;
  const answer = useQuery({ queryKey: ["chat-history", id, revision], queryFn: () => history(id), enabled: isOpen });
  const said = answer.data ? earlier(answer.data, props.messages) : [];
  return (
    <li className="said folded">
      <button className="button small plain" aria-expanded={isOpen} onClick={() => open(!isOpen)}>
        <span aria-hidden="true">{isOpen ? "▾" : "▸"}</span> {hidden > 0 ? `${plural(hidden, "earlier turn")} out of the agent's view` : "Earlier turns, shortened for the agent"}: open
      </button>
      {isOpen && answer.error && <Failed error={answer.error} />}
      {isOpen && !answer.data && !answer.error && <Loading what="the folded parts" lines={3} />}
      {isOpen && said.length > 0 && (
        <ol className="thread earlier">
          {said.map((one, at) => (
            <Said key={at} role={String(one.role)} content={String(one.content)} at={String(one.timestamp)} />
          ))}
        </ol>
      )}
      {isOpen && answer.data && said.length === 0 && <p className="quiet">None of them is a message of yours or of the agent.</p>}
    </li>
  );
}

function Said({ role, content, at, isPreserved }: { role: string; content: string; at: string; isPreserved?: boolean }) {
  if (role === "tool") {
    return (
      <li className="said tool">
        <details>
          <summary>Result of a tool</summary>
          <pre tabIndex={0}>{content.slice(0, 4000)}</pre>
        </details>
      </li>
    );
  }
  return (
    <li className={`said ${role}`}>
      <header>
        <b>{role === "user" ? "You" : "Agent"}</b>
        <span className="quiet num">{time(at)}</span>
        {isPreserved && role !== "user" && <Badge title="The agent has it word for word">kept</Badge>}
      </header>
      {role === "user" ? <p className="bubble"><Foreign>{content}</Foreign></p> : <Markdown text={content} />}
    </li>
  );
}

interface ThreadProps {
  state: ChatState;
  onRetry: (message: string) => void;
  onEdit: (message: string) => void;
}

export function Thread({ state, onRetry, onEdit }: ThreadProps) {
  const end = useRef<HTMLDivElement>(null);
  const { messages } = state.props;
  const { answer } = state;
  const isOpen = answer !== null && answer.state !== "done";
  const shown = isOpen && messages.at(-1)?.role === "user" && messages.at(-1)?.content === answer.message;
  const hasOpened = useRef(false);
  useEffect(() => {
    const box = end.current?.parentElement;
    // Begin at the end; follow the answer only while its end is in view.
    if (box && !hasOpened.current) box.scrollTop = box.scrollHeight;
    hasOpened.current = true;
    if (box && box.scrollHeight - box.scrollTop - box.clientHeight < 160) box.scrollTop = box.scrollHeight;
  }, [messages.length, answer?.text, answer?.state]);
  return (
    <div className="thread-box" tabIndex={0} role="log" aria-label="Conversation" aria-live="polite" aria-busy={answer?.state === "thinking"}>
      <ol className="thread">
        {state.hidden > 0 && messages.every((one) => one.role !== "system") && <Folded state={state} />}
        {messages.map((one) =>
          one.role === "system" ? (
            <Folded key={one.id} state={state} />
          ) : (
            <Said key={one.id} role={one.role} content={one.content} at={one.timestamp} isPreserved={one.isPreserved} />
          ),
        )}
        {isOpen && !shown && <Said role="user" content={answer.message} at={new Date().toISOString()} />}
        {isOpen && (
          <li className="said assistant">
            <header>
              <b>Agent</b>
              {answer.state === "thinking" && <span className="quiet thinking">{answer.text ? "writing" : "thinking"}</span>}
            </header>
            <Actions actions={answer.actions} />
            {answer.text && <Markdown text={answer.text} />}
            {answer.state === "thinking" && !answer.text && answer.actions.length === 0 && <span className="bone" style={{ display: "block", width: 180 }} />}
            {answer.state !== "thinking" && (
              <div className={`notice ${answer.state === "failed" ? "bad" : "neutral"}`} role="status">
                <span>
                  <strong>{answer.state === "failed" ? "There is no answer." : "Stopped."}</strong> {answer.error ?? "The agent does not remember this message."}
                </span>
                <span className="row" style={{ marginLeft: "auto", flexWrap: "nowrap" }}>
                  <button className="button small" onClick={() => onRetry(answer.message)}>
                    Try again
                  </button>
                  <button className="button small plain" onClick={() => onEdit(answer.message)}>
                    Edit
                  </button>
                </span>
              </div>
            )}
          </li>
        )}
        {answer?.state === "done" && (answer.actions.length > 0 || answer.tokens !== null) && (
          <li className="said foot">
            <Actions actions={answer.actions} />
            {answer.tokens != null && (
              <span className="quiet num">
                {count(answer.tokens)} tokens{answer.cost ? ` · $${answer.cost.toFixed(4)}` : ""}
              </span>
            )}
          </li>
        )}
      </ol>
      <div ref={end} />
    </div>
  );
}
