/** Talk to the agent of this server. The server makes the answers: leaving the page ends nothing. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { AlertDialog, DropdownMenu } from "radix-ui";
import { useEffect, useRef, useState } from "react";
import { about } from "../../api/queries";
import { Ago, Card, usePageTitle, Words } from "../../parts/bits";
import { Empty, Failed, Loaded, Loading } from "../../parts/states";
import { sentence } from "../../lib/format";
import { download } from "../../lib/export";
import { seen, toMarkdown, type ChatState } from "../../state/chat";
import { begin, chats, clear, compress, history, remove, say, stop, tasks, useChat } from "./data";
import { Thread } from "./thread";

export function ChatPage() {
  usePageTitle("Chat");
  const server = useQuery(about);
  return (
    <Loaded answer={server} what="the server" lines={6}>
      {(known) =>
        known.can_chat ? (
          <Chat />
        ) : (
          <Card>
            <Empty title="Nobody to talk to yet" command="apc ui --agent module:agent">
              <Words>{sentence(known.why_no_chat ?? "this server has no agent")}</Words>
            </Empty>
          </Card>
        )
      }
    </Loaded>
  );
}

function Chat() {
  const { chatId } = useParams({ strict: false }) as { chatId?: string };
  const { state, live, isGone } = useChat(chatId);
  const client = useQueryClient();
  // The list tells of the newest message and its title: it is read again when a conversation has grown.
  const grown = `${state?.props.messages.length ?? 0} ${state?.answer?.state ?? ""}`;
  useEffect(() => void client.invalidateQueries({ queryKey: ["chats"] }), [client, grown]);
  return (
    <div className="chat">
      <h1 className="sr">Chat</h1>
      <Sessions current={chatId} />
      <section className="card chat-main" aria-label="Conversation">
        {isGone ? (
          <Empty title="There is no such conversation">It was deleted, or it belongs to somebody else.</Empty>
        ) : chatId && !state ? (
          <Loading what="the conversation" lines={6} />
        ) : (
          <Conversation state={state} isLost={Boolean(chatId) && live !== "live"} />
        )}
      </section>
    </div>
  );
}

function Sessions({ current }: { current: string | undefined }) {
  const answer = useQuery(chats);
  return (
    <aside className="card chat-list" aria-label="Conversations">
      <header>
        <h2>Conversations</h2>
        <Link to="/chat" className="button small" activeOptions={{ exact: true }}>
          New
        </Link>
      </header>
      <Loaded answer={answer} what="conversations" lines={4}>
        {(list) =>
          list.items.length === 0 ? (
            <p className="quiet" style={{ padding: 14 }}>
              None yet. Your conversations stay here{list.is_kept ? "." : " until the server stops: it has no database."}
            </p>
          ) : (
            <ul>
              {list.items.map((one) => (
                <li key={one.session_id}>
                  <Link to="/chat/$chatId" params={{ chatId: one.session_id }} aria-current={one.session_id === current ? "page" : undefined}>
                    <span>{one.title ?? "Empty conversation"}</span>
                    <small>
                      <Ago at={one.updated_at} /> · {one.messages} messages
                    </small>
                  </Link>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
    </aside>
  );
}

function Conversation({ state, isLost }: { state: ChatState | null; isLost: boolean }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [text, type] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);
  const send = useMutation({
    async mutationFn(message: string) {
      const id = state?.session_id ?? (await begin()).session_id;
      await say(id, message);
      return id;
    },
    onSuccess(id, message) {
      type((now) => (now.trim() === message ? "" : now));
      void client.invalidateQueries({ queryKey: ["chats"] });
      if (!state) void navigate({ to: "/chat/$chatId", params: { chatId: id } });
    },
  });
  const act = useMutation({ mutationFn: (run: () => Promise<unknown>) => run(), onSettled: () => void client.invalidateQueries({ queryKey: ["chats"] }) });
  const isThinking = state?.answer?.state === "thinking" || send.isPending;
  const submit = () => {
    const message = text.trim();
    if (message && !isThinking) send.mutate(message);
  };
  return (
    <>
      {state && <Head state={state} isBusy={isThinking} run={(one) => act.mutate(one)} />}
      {state && (state.props.messages.length > 0 || state.answer) ? (
        <Thread
          state={state}
          onRetry={(message) => send.mutate(message)}
          onEdit={(message) => {
            type(message);
            box.current?.focus();
          }}
        />
      ) : (
        <div className="thread-box">
          <Empty title="Ask the agent something">The answer appears as it is written. You can leave this page: the server finishes it.</Empty>
        </div>
      )}
      {isLost && (
        <p className="notice warn" role="status">
          The connection is lost. The answer goes on, and appears when the server is back.
        </p>
      )}
      {send.error && <Failed error={send.error} />}
      {act.error && <Failed error={act.error} />}
      <form
        className="composer"
        onSubmit={(event) => {
          event.preventDefault();
          submit();
        }}
      >
        <textarea
          ref={box}
          className="field"
          aria-label="Message"
          placeholder="Message (Enter sends, Shift-Enter begins a line)"
          rows={Math.min(8, text.split("\n").length + 1)}
          value={text}
          maxLength={100_000}
          onChange={(event) => type(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
              event.preventDefault();
              submit();
            } else if (event.key === "Escape" && isThinking && state) act.mutate(() => stop(state.session_id));
          }}
        />
        {isThinking && state ? (
          <button type="button" className="button" onClick={() => act.mutate(() => stop(state.session_id))}>
            Stop
          </button>
        ) : (
          <button className="button primary" disabled={!text.trim() || isThinking}>
            Send
          </button>
        )}
      </form>
    </>
  );
}

const percent = (part: number): string => `${Math.round(part * 100)} %`;

function Head({ state, isBusy, run }: { state: ChatState; isBusy: boolean; run: (act: () => Promise<unknown>) => void }) {
  const { props, session_id } = state;
  const started = useQuery({ ...tasks(session_id), refetchInterval: 10_000 }).data?.items ?? [];
  const tone = props.pressure > 0.7 ? "warn" : "";
  const save = async (kind: "md" | "json") => {
    const whole = await history(session_id);
    download(`chat-${session_id}.${kind}`, kind === "md" ? "text/markdown" : "application/json", kind === "md" ? toMarkdown(whole) : JSON.stringify(whole, null, 2));
  };
  return (
    <header className="chat-head">
      <div className="pressure" title="How much of the agent's window is used. When it is nearly full, earlier parts are folded: the agent sees them shortened, or not at all. You can open them above.">
        <span id="pressure">Window {percent(props.pressure)}</span>
        <div className={`meter ${tone}`} role="meter" aria-labelledby="pressure" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(props.pressure * 100)}>
          <i style={{ width: `${Math.min(100, props.pressure * 100)}%` }} />
        </div>
        <small className="quiet">{seen(state)}</small>
      </div>
      {started.length > 0 && (
        <span className="quiet" title={started.map((one) => `${one.action}: ${one.status}`).join("\n")}>
          {started.filter((one) => one.status === "RUNNING" || one.status === "PENDING").length} of {started.length} tasks run
        </span>
      )}
      <div className="row" style={{ marginLeft: "auto" }}>
        <button className="button small" disabled={!props.canCompress || isBusy} onClick={() => run(() => compress(session_id))} title="Fold earlier parts now">
          Compress
        </button>
        <DropdownMenu.Root>
          <DropdownMenu.Trigger className="button small plain">Export</DropdownMenu.Trigger>
          <DropdownMenu.Portal>
            <DropdownMenu.Content className="menu" align="end" sideOffset={4}>
              <DropdownMenu.Item onSelect={() => void save("md")}>Markdown</DropdownMenu.Item>
              <DropdownMenu.Item onSelect={() => void save("json")}>JSON</DropdownMenu.Item>
            </DropdownMenu.Content>
          </DropdownMenu.Portal>
        </DropdownMenu.Root>
        <Ask label="Clear" title="Clear this conversation?" words="The agent forgets everything that was said in it." isOff={!props.canClear || isBusy} act={() => run(() => clear(session_id))} />
        <Delete id={session_id} isOff={isBusy} />
      </div>
    </header>
  );
}

function Delete({ id, isOff }: { id: string; isOff: boolean }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const act = useMutation({
    mutationFn: () => remove(id),
    onSuccess() {
      void client.invalidateQueries({ queryKey: ["chats"] });
      void navigate({ to: "/chat" });
    },
  });
  return <Ask label="Delete" title="Delete this conversation?" words="It cannot be brought back. Export it first if you need it." isOff={isOff} act={() => act.mutate()} />;
}

function Ask({ label, title, words, isOff, act }: { label: string; title: string; words: string; isOff: boolean; act: () => void }) {
  return (
    <AlertDialog.Root>
      <AlertDialog.Trigger className="button small plain" disabled={isOff}>
        {label}
      </AlertDialog.Trigger>
      <AlertDialog.Portal>
        <AlertDialog.Overlay className="overlay" />
        <AlertDialog.Content className="dialog">
          <AlertDialog.Title asChild>
            <h2>{title}</h2>
          </AlertDialog.Title>
          <AlertDialog.Description className="soft">{words}</AlertDialog.Description>
          <div className="acts">
            <AlertDialog.Cancel className="button">Keep it</AlertDialog.Cancel>
            <AlertDialog.Action className="button danger" onClick={act}>
              {label}
            </AlertDialog.Action>
          </div>
        </AlertDialog.Content>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
