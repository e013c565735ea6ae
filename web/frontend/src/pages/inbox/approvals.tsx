/** What agents ask people: the question, what they show beside it, and approve or deny with a reason. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useId, useState } from "react";
import { api, data, type Schemas } from "../../api/client";
import { about, approvals } from "../../api/queries";
import { Ago, Badge, Foreign, PacketLink, useNow } from "../../parts/bits";
import { Json } from "../../parts/json";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, type Column } from "../../parts/table";
import { dateTime, duration, plural } from "../../lib/format";

type Approval = Schemas["OpenApproval"];
type Act = "approve" | "deny";

const COLUMNS: Column<Approval>[] = [
  { name: "packet_id", title: "Question", value: (row) => row.packet_id },
  { name: "session_id", title: "Session", value: (row) => row.session_id },
  { name: "asker", title: "Asked by", value: (row) => row.asker },
  { name: "may_answer", title: "May answer", value: (row) => row.may_answer.join(", ") },
  { name: "text", title: "Text", value: (row) => row.text },
  { name: "due_at", title: "Due", value: (row) => row.due_at },
];

/** Soon is within ten minutes. */
const SOON = 600_000;

function Due({ at }: { at: string }) {
  const left = new Date(at).getTime() - useNow(1000);
  if (left <= 0) return <Badge tone="bad">time is over</Badge>;
  return (
    <Badge tone={left < SOON ? "warn" : "neutral"} title={dateTime(at)}>
      {duration(left)} left
    </Badge>
  );
}

interface ItemProps {
  approval: Approval;
  mayOperate: boolean;
  isPending: boolean;
  answer: (act: Act, note: string, person: string | null) => void;
}

function Item({ approval, mayOperate, isPending, answer }: ItemProps) {
  const [note, write] = useState("");
  const [person, choose] = useState(approval.answer_as[0] ?? "");
  const title = useId();
  const voices = approval.answer_as;
  return (
    <li className="letter" aria-labelledby={title}>
      <div className="row">
        <span>
          <b><Foreign>{approval.asker}</Foreign></b> <span className="quiet">asks</span> <Foreign>{approval.role ?? approval.may_answer.join(", ")}</Foreign>
        </span>
        <span className="quiet"><Ago at={approval.asked_at} /></span>
        <span style={{ marginLeft: "auto" }}><Due at={approval.due_at} /></span>
      </div>
      <p id={title} style={{ fontSize: 15, whiteSpace: "pre-wrap" }}>
        {approval.text === null ? <span className="soft">The question is sealed: this server has no key to read it.</span> : <Foreign>{approval.text}</Foreign>}
      </p>
      {approval.content && <div className="sunken"><Json value={approval.content} /></div>}
      <p className="soft row">
        <PacketLink id={approval.packet_id} session={approval.session_id}>Open packet</PacketLink>·
        <Link to="/runs/$runId" params={{ runId: approval.run_id }} search={{ session: approval.session_id }}>Open run</Link>
      </p>
      {voices.length === 0 && mayOperate && (
        <p className="quiet">
          To be answered by <Foreign>{approval.may_answer.join(", ")}</Foreign>.
        </p>
      )}
      {voices.length > 0 && (
        <form className="row" onSubmit={(event) => event.preventDefault()}>
          <input className="field grow" aria-label={`Reason for ${approval.asker}`} placeholder="Reason, kept in the log (optional)" value={note} onChange={(event) => write(event.target.value)} maxLength={8192} />
          {voices.length > 1 && (
            <select className="field" aria-label="Answer as" value={person} onChange={(event) => choose(event.target.value)}>
              {voices.map((one) => <option key={one} value={one}>as {one}</option>)}
            </select>
          )}
          <button type="button" className="button primary" disabled={isPending} onClick={() => answer("approve", note, person || null)}>Approve</button>
          <button type="button" className="button danger" disabled={isPending} onClick={() => answer("deny", note, person || null)}>Deny</button>
        </form>
      )}
    </li>
  );
}

export function Approvals() {
  const client = useQueryClient();
  const answer = useQuery(approvals);
  const server = useQuery(about).data;
  const act = useMutation({
    mutationFn: ({ approval, name, note, person }: { approval: Approval; name: Act; note: string; person: string | null }) =>
      data(api.POST("/api/v1/approvals/{packet_id}/{act}", { params: { path: { packet_id: approval.packet_id, act: name } }, body: { note: note.trim() || null, person } })),
    onSettled: () => void client.invalidateQueries({ queryKey: ["approvals"] }),
  });
  return (
    <Loaded answer={answer} what="questions">
      {({ items }) => (
        <>
          <div role="status">
            {act.error && <div className="notice bad" style={{ margin: 14 }}>{act.error.message}</div>}
            {act.data && !act.isPending && (
              <div className="notice good" style={{ margin: 14 }}>
                <span>{act.variables?.name === "deny" ? "Denied" : "Approved"} as <Foreign>{String(act.data.detail.by)}</Foreign>.</span>
              </div>
            )}
          </div>
          {items.length === 0 ? (
            <Empty title="No open questions">What a handler asks people with ctx.ask waits here until somebody approves or denies it.</Empty>
          ) : (
            <>
              <div className="filters" style={{ justifyContent: "space-between" }}>
                <span className="quiet num">
                  {plural(items.length, "open question")}
                </span>
                <ExportMenu name="approvals" rows={items} columns={COLUMNS} />
              </div>
              <ul>
                {items.map((one) => (
                  <Item key={one.packet_id} approval={one} mayOperate={server?.role === "operator"} isPending={act.isPending} answer={(name, note, person) => act.mutate({ approval: one, name, note, person })} />
                ))}
              </ul>
            </>
          )}
        </>
      )}
    </Loaded>
  );
}
