/** Deliveries that failed for good: why, until when, in groups; deliver again, or discard with a reason. */
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { api, data, type Schemas } from "../../api/client";
import { about, dead, deadGroups, useOpenEffects } from "../../api/queries";
import { Ago, Badge, Foreign, PacketLink, TypeName, useIsViewer } from "../../parts/bits";
import { ContentLine } from "../../parts/content";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, type Column } from "../../parts/table";
import { plain, plural, sentence, time } from "../../lib/format";
import { Countdown } from "./approvals";
import { LetterDialog, type LetterAct, type Member } from "./settling";

type Letter = Schemas["DeadLetterDetail"];
type Group = Schemas["DeadLetterGroup"];
interface Asked {
  act: LetterAct;
  members: readonly Member[];
}

const nameOf = (letter: Letter) => `${letter.session_id} ${letter.packet_id} ${letter.recipient}`;

const LETTERS: Column<Letter>[] = [
  { name: "packet_id", title: "Packet", value: (row) => row.packet_id },
  { name: "session_id", title: "Session", value: (row) => row.session_id },
  { name: "recipient", title: "Recipient", value: (row) => row.recipient },
  { name: "reason", title: "Reason", value: (row) => row.reason },
  { name: "exception", title: "Exception", value: (row) => row.exception },
  { name: "line", title: "Content", value: (row) => row.line },
  { name: "died_at", title: "Died", value: (row) => row.died_at },
  { name: "expires_at", title: "Expires", value: (row) => row.expires_at },
];

/** Until when it can be delivered again. */
function Expiry({ letter }: { letter: Letter }) {
  if (!letter.can_requeue && new Date(letter.expires_at) > new Date()) return <Badge tone="warn" title="Work of a halted session cannot be delivered again">session has halted</Badge>;
  return <Countdown at={letter.expires_at} over="expired" />;
}

interface ItemProps {
  letter: Letter;
  canAct: boolean;
  isPending: boolean;
  again: () => void;
  discard: () => void;
}

function LetterItem({ letter, canAct, isPending, again, discard }: ItemProps) {
  const isViewer = useIsViewer();
  const isOpen = useOpenEffects(letter.session_id);
  return (
    <li className="letter">
      <div className="row">
        <TypeName type={letter.packet_type} />
        <span>
          <Foreign>{letter.sender}</Foreign> <span className="quiet">to</span> <b><Foreign>{letter.recipient}</Foreign></b>
        </span>
        <span className="quiet"><Ago at={letter.died_at} /></span>
        <Expiry letter={letter} />
        {canAct && (
          <span className="row" style={{ marginLeft: "auto" }}>
            <button className="button small" disabled={isPending || !letter.can_requeue} title={letter.can_requeue ? undefined : "The packet has expired, or its session has halted"} onClick={again}>
              Deliver again
            </button>
            <button className="button small danger" disabled={isPending} onClick={discard}>
              Discard…
            </button>
          </span>
        )}
      </div>
      {letter.exception && <p className="mono fault"><Foreign>{letter.exception}</Foreign></p>}
      {!letter.exception && !isViewer && <p><Foreign>{sentence(letter.words)}</Foreign></p>}
      <p className="soft"><ContentLine line={letter.line} body={letter.body} /></p>
      <p className="soft row">
        <PacketLink id={letter.packet_id} session={letter.session_id}>Open packet</PacketLink>·
        <Link to="/runs/$runId" params={{ runId: letter.run_id }} search={{ session: letter.session_id }}>Open run</Link>
        {isOpen(letter.recipient) && (
          <>
            · <Link to="/inbox" search={{ view: "effects" }}>Settle its effect first</Link>
          </>
        )}
      </p>
      <details>
        <summary className="soft">{plural(letter.attempt, "attempt")}</summary>
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

/** Letters that failed alike, as one: same agent, same exception, same kind of packet. */
function Groups({ groups, canAct, ask }: { groups: readonly Group[]; canAct: boolean; ask: (asked: Asked) => void }) {
  if (groups.length === 0) return null;
  return (
    <section aria-label="Alike">
      <ul className="alike">
        {groups.map((group) => (
          <li key={`${group.recipient} ${group.code} ${group.exception_type ?? ""} ${group.handled || group.packet_type}`}>
            <b className="num">{group.count}×</b>
            <span className="grow">
              <b className={group.exception_type ? "mono" : undefined}><Foreign>{group.exception_type ?? plain(group.code)}</Foreign></b> <span className="quiet">at</span> <Foreign>{group.recipient}</Foreign> <span className="quiet">on</span> <Foreign>{group.handled || group.packet_type}</Foreign>
            </span>
            {group.expires_at && <span className="quiet row">next expires <Countdown at={group.expires_at} over="now" /></span>}
            {canAct && (
              <span className="row">
                {group.can_requeue > 0 && <button className="button small" onClick={() => ask({ act: "requeue", members: group.members })}>Deliver {group.can_requeue} again…</button>}
                <button className="button small danger" onClick={() => ask({ act: "discard", members: group.members })}>Discard {group.members.length}…</button>
              </span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

export function DeadLetters() {
  const client = useQueryClient();
  const answer = useInfiniteQuery(dead);
  const groups = useQuery(deadGroups).data?.groups.filter((one) => one.count > 1) ?? [];
  const server = useQuery(about).data;
  const canAct = server?.can_act ?? false;
  const [asked, ask] = useState<Asked | null>(null);
  const again = useMutation({
    mutationFn: ({ packet_id, session_id, recipient, attempt }: Letter) =>
      data(api.POST("/api/v1/dead/{act}", { params: { path: { act: "requeue" } }, body: { deliveries: [{ packet_id, session_id, recipient, attempt }], note: null } })),
    onSettled: () => void client.invalidateQueries({ queryKey: ["dead"] }),
  });
  return (
    <>
      {asked && <LetterDialog {...asked} close={() => ask(null)} />}
      <Loaded answer={answer} what="dead letters">
        {(found) => {
          const letters = found.pages.flatMap((page) => page.items);
          return (
            <>
              <div role="status">
                {again.error && <div className="notice bad" style={{ margin: 14 }}>{again.error.message}</div>}
                {again.data && !again.isPending && <div className="notice good" style={{ margin: 14 }}><span>Delivered again as <Foreign>{String(again.data.detail.by)}</Foreign>.</span></div>}
              </div>
              {letters.length === 0 ? (
                <Empty title="No dead letters">A delivery that fails permanently appears here with every attempt.</Empty>
              ) : (
                <>
                  <div className="filters" style={{ justifyContent: "space-between" }}>
                    <span className="quiet num">
                      {plural(letters.length, "dead letter")}
                      {answer.hasNextPage && " and more"}
                      {server && !server.can_act && ` · ${server.why_not ?? "This server allows no acts."}`}
                    </span>
                    <ExportMenu name="dead-letters" rows={letters} columns={LETTERS} />
                  </div>
                  <Groups groups={groups} canAct={canAct} ask={ask} />
                  <ul>
                    {letters.map((letter) => (
                      <LetterItem key={nameOf(letter)} letter={letter} canAct={canAct} isPending={again.isPending} again={() => again.mutate(letter)} discard={() => ask({ act: "discard", members: [letter] })} />
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
    </>
  );
}
