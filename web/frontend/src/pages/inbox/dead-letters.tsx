/** Deliveries that failed for good, with every attempt: deliver again, or discard. */
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { api, data, type Schemas } from "../../api/client";
import { about, dead } from "../../api/queries";
import { Ago, Foreign, PacketLink, TypeName } from "../../parts/bits";
import { Empty, Loaded } from "../../parts/states";
import { ExportMenu, type Column } from "../../parts/table";
import { plain, plural, sentence, time } from "../../lib/format";

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
            <button className="button small" disabled={isPending || !letter.can_requeue} title={letter.can_requeue ? undefined : "The packet has expired, or its session has halted"} onClick={() => act("requeue", letter)}>
              Deliver again
            </button>
            <button className="button small danger" disabled={isPending} onClick={() => act("discard", letter)}>
              Discard
            </button>
          </span>
        )}
      </div>
      <p>
        <Foreign>{sentence(letter.words)}</Foreign>
      </p>
      <p className="soft row">
        <PacketLink id={letter.packet_id} session={letter.session_id}>Open packet</PacketLink>·
        <Link to="/runs/$runId" params={{ runId: letter.run_id }} search={{ session: letter.session_id }}>Open run</Link>
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

export function DeadLetters() {
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
              {act.data && !act.isPending && <div className="notice good" style={{ margin: 14 }}><span>{act.variables?.name === "discard" ? "Discarded" : "Delivered again"} as <Foreign>{String(act.data.detail.by)}</Foreign>.</span></div>}
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
