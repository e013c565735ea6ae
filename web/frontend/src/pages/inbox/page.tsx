/** What waits for a person: dead letters, effects to settle, failed tasks. */
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useSearch } from "@tanstack/react-router";
import { Tabs } from "radix-ui";
import { api, data, type Schemas } from "../../api/client";
import { about, dead, effects, tasks } from "../../api/queries";
import { Ago, Badge, Card, Foreign, PacketLink, TypeName, usePageTitle } from "../../parts/bits";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, Table, type Column } from "../../parts/table";
import { count, plain, time } from "../../lib/format";
import { useStream } from "../../state/live";

type Letter = Schemas["DeadLetterDetail"];

const nameOf = (letter: Letter) => `${letter.session_id} ${letter.packet_id} ${letter.recipient}`;

const LETTERS: Column<Letter>[] = [
  { name: "packet_id", title: "Packet", value: (row) => row.packet_id },
  { name: "session_id", title: "Session", value: (row) => row.session_id },
  { name: "recipient", title: "Recipient", value: (row) => row.recipient },
  { name: "reason", title: "Reason", value: (row) => row.reason },
  { name: "died_at", title: "Died", value: (row) => row.died_at },
];

function LetterItem({ letter, canAct, act, isPending }: { letter: Letter; canAct: boolean; act: (name: "requeue" | "discard", letter: Letter) => void; isPending: boolean }) {
  return (
    <li className="letter">
      <div className="row">
        <TypeName type={letter.packet_type} />
        <span>
          <Foreign>{letter.sender}</Foreign> <span className="quiet">to</span> <b><Foreign>{letter.recipient}</Foreign></b>
        </span>
        <span className="quiet">
          <Ago at={letter.died_at} />
        </span>
        {canAct && (
          <span className="row" style={{ marginLeft: "auto" }}>
            <button className="button small" disabled={isPending || !letter.can_requeue} title={letter.can_requeue ? undefined : "The packet has expired"} onClick={() => act("requeue", letter)}>
              Deliver again
            </button>
            <button className="button small danger" disabled={isPending} onClick={() => act("discard", letter)}>
              Discard
            </button>
          </span>
        )}
      </div>
      <p>
        <Foreign>{letter.words}</Foreign>
      </p>
      <details>
        <summary className="soft">
          {letter.attempt === 1 ? "1 attempt" : `${letter.attempt} attempts`} · <PacketLink id={letter.packet_id} session={letter.session_id}>Open packet</PacketLink> ·{" "}
          <Link to="/runs/$runId" params={{ runId: letter.run_id }} search={{ session: letter.session_id }}>
            Open run
          </Link>
        </summary>
        <ol className="hops" style={{ marginTop: 8 }}>
          {letter.attempts.map((one, index) => (
            <li key={index} className={one.to_state === "DEAD_LETTERED" ? "bad" : ""}>
              <span className="num quiet">{time(one.at)}</span>
              <div>
                Attempt {one.attempt}: {plain(one.to_state)}
                {one.error && (
                  <div className="soft">
                    <Foreign>{one.error}</Foreign>
                  </div>
                )}
              </div>
            </li>
          ))}
        </ol>
      </details>
    </li>
  );
}

function DeadLetters() {
  const client = useQueryClient();
  const answer = useInfiniteQuery(dead);
  const server = useQuery(about).data;
  const act = useMutation({
    mutationFn: ({ name, letter }: { name: "requeue" | "discard"; letter: Letter }) =>
      data(
        api.POST("/api/v1/dead/{act}", {
          params: { path: { act: name } },
          body: { deliveries: [{ packet_id: letter.packet_id, session_id: letter.session_id, recipient: letter.recipient }], note: null },
        }),
      ),
    onSettled: () => void client.invalidateQueries({ queryKey: ["dead"] }),
  });
  return (
    <Loaded answer={answer} what="dead letters">
      {(found) => {
        const letters = found.pages.flatMap((page) => page.items);
        return (
          <>
            <div role="status">
              {act.error && <div className="notice bad" style={{ margin: 14 }}>{act.error.message}</div>}
              {act.data && !act.isPending && <div className="notice good" style={{ margin: 14 }}>{act.variables?.name === "discard" ? "Discarded" : "Delivered again"}: {plain(act.data.verdict).toLowerCase()}.</div>}
            </div>
            {letters.length === 0 ? (
              <Empty title="No dead letters">A delivery that fails permanently appears here with every attempt.</Empty>
            ) : (
              <>
                <div className="filters" style={{ justifyContent: "space-between" }}>
                  <span className="quiet num">
                    {count(letters.length)}
                    {answer.hasNextPage && " and more"}
                    {server && !server.can_act && ` · ${server.why_not ?? "This server allows no acts."}`}
                  </span>
                  <ExportMenu name="dead-letters" rows={letters} columns={LETTERS} />
                </div>
                <ul>
                  {letters.map((letter) => (
                    <LetterItem key={nameOf(letter)} letter={letter} canAct={server?.can_act ?? false} isPending={act.isPending} act={(name, one) => act.mutate({ name, letter: one })} />
                  ))}
                </ul>
                {answer.hasNextPage && (
                  <div style={{ padding: 14 }}>
                    <button className="button" onClick={() => void answer.fetchNextPage()}>
                      Show more
                    </button>
                  </div>
                )}
              </>
            )}
          </>
        );
      }}
    </Loaded>
  );
}

type Effect = Schemas["EffectSummary"];
const EFFECTS: Column<Effect>[] = [
  { name: "key", title: "Effect", value: (row) => row.key, cell: (row) => <Foreign>{row.key}</Foreign> },
  { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign> },
  { name: "state", title: "State", value: (row) => row.state, cell: (row) => <Badge tone="warn">{row.state === "UNKNOWN" ? "may have happened" : "result lost"}</Badge>, width: "150px" },
  { name: "problem", title: "Problem", value: (row) => row.problem, cell: (row) => <Foreign>{row.problem ?? ""}</Foreign>, isExtra: true },
  { name: "claimed_at", title: "Begun", value: (row) => row.claimed_at, cell: (row) => <Ago at={row.claimed_at} />, width: "96px" },
  { name: "packet_id", title: "Packet", value: (row) => row.packet_id, cell: (row) => <PacketLink id={row.packet_id} session={row.session_id} />, width: "84px", isExtra: true },
];

function Effects() {
  const unknown = useQuery(effects("UNKNOWN"));
  const lost = useQuery(effects("RESULT_LOST"));
  return (
    <Loaded answer={unknown} what="effects">
      {(found) => {
        const rows = [...found.items, ...(lost.data?.items ?? [])];
        if (rows.length === 0) return <Empty title="No effects to settle">An act outside the bus whose outcome is unknown appears here. Settle it with apc effect settle.</Empty>;
        return (
          <>
            <div className="filters" style={{ justifyContent: "space-between" }}>
              <span className="soft">Settle them on the command line: <code>apc effect settle</code></span>
              <ExportMenu name="effects" rows={rows} columns={EFFECTS} />
            </div>
            <Table label="Effects" rows={rows} columns={EFFECTS} rowKey={(row) => `${row.packet_id} ${row.agent_id} ${row.key}`} />
          </>
        );
      }}
    </Loaded>
  );
}

type Task = Schemas["TaskSummary"];
const TASKS: Column<Task>[] = [
  { name: "action", title: "Task", value: (row) => row.action, cell: (row) => <Foreign>{row.action}</Foreign> },
  { name: "agent_id", title: "Agent", value: (row) => row.agent_id, cell: (row) => <Foreign>{row.agent_id}</Foreign> },
  { name: "error", title: "Error", value: (row) => row.error, cell: (row) => <Foreign>{row.error ?? ""}</Foreign>, width: "minmax(0, 2fr)" },
  { name: "attempt", title: "Attempt", value: (row) => row.attempt, width: "76px", isNumber: true, isExtra: true },
  { name: "finished_at", title: "Ended", value: (row) => row.finished_at, cell: (row) => (row.finished_at ? <Ago at={row.finished_at} /> : ""), width: "96px" },
];

function Tasks() {
  const answer = useQuery(tasks("FAILED"));
  return (
    <Loaded answer={answer} what="tasks">
      {(found) => (found.items.length === 0 ? <Empty title="No failed tasks">A durable task that failed appears here.</Empty> : <Table label="Failed tasks" rows={found.items} columns={TASKS} rowKey={(row) => row.task_id} />)}
    </Loaded>
  );
}

export function InboxPage() {
  usePageTitle("Inbox");
  const { view } = useSearch({ from: "/inbox" });
  const navigate = useNavigate();
  useStream({}, ["dead", "effects", "tasks"]);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Inbox</h1>
          <p className="under">What waits for a person.</p>
        </div>
      </div>
      <Card flush>
        <Tabs.Root value={view ?? "dead"} onValueChange={(next) => void navigate({ to: "/inbox", search: { view: next === "dead" ? undefined : next }, replace: true })}>
          <Tabs.List className="tabs" aria-label="Kinds">
            <Tabs.Trigger value="dead">Dead letters</Tabs.Trigger>
            <Tabs.Trigger value="effects">Effects</Tabs.Trigger>
            <Tabs.Trigger value="tasks">Failed tasks</Tabs.Trigger>
          </Tabs.List>
          <Tabs.Content value="dead" tabIndex={-1}>
            <DeadLetters />
          </Tabs.Content>
          <Tabs.Content value="effects" tabIndex={-1}>
            <Effects />
          </Tabs.Content>
          <Tabs.Content value="tasks" tabIndex={-1}>
            <Tasks />
          </Tabs.Content>
        </Tabs.Root>
      </Card>
    </div>
  );
}
