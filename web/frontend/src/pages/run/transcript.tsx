/** What the agents said to each other, in order, like a conversation. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import type { Schemas } from "../../api/client";
import { packet, transcript } from "../../api/queries";
import { Foreign, PacketLink, TypeName, Verdict, useIsViewer } from "../../parts/bits";
import { whyNoContent } from "../../parts/content";
import { Empty, Loaded } from "../../parts/states";
import { costText, plural, time } from "../../lib/format";
import { isObject, type Json } from "../../lib/content";
import { Spoken } from "../packet/content";

const SILENT = new Set(["ACK", "NACK", "HEARTBEAT", "SYNC"]);

/** Agents meet at a barrier by SYNC: nothing is said. */
const isSync = (document: unknown): boolean => (document as { payload?: Json } | null | undefined)?.payload?.signal === "SYNC";

/** What each agent reported to have used for handling a packet. */
export function usageOf(hops: readonly Schemas["PacketHop"][]): { agent: string; words: string }[] {
  // Several transitions of one entry carry the same report.
  const entries = [...new Map(hops.map((hop) => [`${hop.seq} ${hop.recipient}`, hop])).values()];
  return entries.flatMap((hop) => {
    const { tokens, cost } = (hop.metadata?.usage ?? {}) as { tokens?: number; cost?: number };
    const words = [tokens ? plural(tokens, "token") : "", cost ? `cost ${costText(cost)}` : ""].filter(Boolean).join(", ");
    return words ? [{ agent: hop.recipient, words }] : [];
  });
}

function Turn({ item }: { item: Schemas["PacketSummary"] }) {
  const answer = useQuery({ ...packet(item.packet_id, item.session_id), staleTime: Infinity });
  const why = whyNoContent(item.body, useIsViewer());
  const payload = answer.data?.document?.payload;
  const used = answer.data ? usageOf(answer.data.hops) : [];
  if (isSync(answer.data?.document) || item.line.startsWith("SYNC:")) return null;
  return (
    <li className={`turn ${item.verdict === "refused" ? "refused" : ""}`}>
      <header>
        <b>
          <Foreign>{item.sender}</Foreign>
        </b>
        {item.recipients.length > 0 && (
          <span className="quiet">
            to <Foreign>{item.recipients.slice(0, 3).join(", ") + (item.recipients.length > 3 ? ` and ${item.recipients.length - 3} more` : "")}</Foreign>
          </span>
        )}
        <TypeName type={item.packet_type} isHollow={item.verdict !== "accepted"} />
        {item.verdict !== "accepted" && <Verdict verdict={item.verdict} code={item.refusal_code} />}
        <PacketLink id={item.packet_id} session={item.session_id}>
          <span className="num quiet">{time(item.judged_at)}</span>
        </PacketLink>
      </header>
      {used.length > 0 && (
        <small className="quiet num">
          {used.map((one) => (
            <span key={one.agent}>
              <Foreign>{one.agent}</Foreign> used {one.words} to handle it.{" "}
            </span>
          ))}
        </small>
      )}
      {why ? (
        <p className="quiet">{why}</p>
      ) : isObject(payload) ? (
        <div className="says">
          <Spoken type={item.packet_type} said={answer.data?.said ?? ""} payload={payload} />
        </div>
      ) : (
        <p>{item.line ? <Foreign>{item.line}</Foreign> : <span className="bone" style={{ display: "block", width: "60%" }} />}</p>
      )}
    </li>
  );
}

export function Transcript({ sessionId, until }: { sessionId: string; until: number | undefined }) {
  const answer = useInfiniteQuery(transcript(sessionId));
  return (
    <Loaded answer={answer} what="the transcript">
      {(data) => {
        const items = data.pages.flatMap((page) => page.items).filter((item) => !SILENT.has(item.packet_type) && (until === undefined || item.seq <= until));
        if (items.length === 0) return <Empty title="Nothing was said yet">Acknowledgements and heartbeats are left out here.</Empty>;
        return (
          <>
            <ol className="turns" tabIndex={0} aria-label="Transcript">
              {items.map((item) => (
                <Turn key={item.seq} item={item} />
              ))}
            </ol>
            {answer.hasNextPage && (
              <div style={{ padding: "0 14px 14px" }}>
                <button className="button" disabled={answer.isFetchingNextPage} onClick={() => void answer.fetchNextPage()}>
                  {answer.isFetchingNextPage ? "Loading…" : "Show more"}
                </button>
              </div>
            )}
          </>
        );
      }}
    </Loaded>
  );
}
