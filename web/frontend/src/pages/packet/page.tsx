/** One packet: what it says, the verdict and why, its path, its causes and effects, and the proof. */
import { useQuery } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { Tabs } from "radix-ui";
import type { Schemas } from "../../api/client";
import { packet } from "../../api/queries";
import { Card, Foreign, PacketLink, TypeName, Verdict, useIsViewer, usePageTitle } from "../../parts/bits";
import { Json } from "../../parts/json";
import { Empty, Loaded } from "../../parts/states";
import { bytes, dateTime, shortId } from "../../lib/format";
import { gistOf } from "../../lib/gist";
import { useStream } from "../../state/live";
import { Chain } from "./chain";
import { Content, whyNoBody } from "./content";
import { Hops } from "./hops";
import { ImpactCard } from "./impact";
import { Lifecycle } from "./lifecycle";
import { ProofCard } from "./proof";
import { VerdictCard } from "./verdict";

type Detail = Schemas["PacketDetail"];

function Envelope({ detail }: { detail: Detail }) {
  const facts: [string, React.ReactNode][] = [
    ["From", <><Foreign>{detail.sender}</Foreign> <span className="quiet">({detail.sender_role === detail.sender_swarm ? detail.sender_role : `${detail.sender_role} of ${detail.sender_swarm}`})</span></>],
    ["To", <Foreign>{detail.recipients.join(", ") || "nobody"}</Foreign>],
    ["Run", <Link to="/runs/$runId" params={{ runId: detail.run_id }} search={{ session: detail.session_id, packet: detail.seq }}>{detail.run_id}</Link>],
    ["Phase", `${detail.run_phase}, round ${detail.round}, generation ${detail.generation}`],
    ["Judged", <span className="num">{dateTime(detail.judged_at)}</span>],
    ["Entry", <span className="num">shard {detail.shard}, number {detail.seq}</span>],
    ["Id", <span className="mono">{detail.packet_id}</span>],
    ["SHA-256", <span className="mono">{detail.packet_hash}</span>],
    ["Size", `${bytes(detail.body_bytes)}${detail.has_signature ? ", signed by the sender" : ""}`],
  ];
  return (
    <dl className="facts">
      {facts.map(([name, value]) => (
        <div key={name} style={{ display: "contents" }}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function PacketPage() {
  const { packetId } = useParams({ from: "/packets/$packetId" });
  const { session } = useSearch({ from: "/packets/$packetId" });
  const answer = useQuery(packet(packetId, session));
  const isViewer = useIsViewer();
  usePageTitle(answer.data ? `${answer.data.packet_type} ${shortId(answer.data.packet_id)}` : "Packet");
  useStream({ session_id: answer.data?.session_id ?? session }, ["packet", "tree", "impact"]);
  return (
    <Loaded answer={answer} what="the packet" lines={10}>
      {(detail) => {
        const gist = gistOf(detail.packet_type, detail.document).split("\n")[0]!;
        const opening = gist.charAt(0).toUpperCase() + gist.slice(1);
        return (
          <div className="stack">
            <div className="title">
              <div style={{ maxWidth: 900 }}>
                <div className="row" style={{ marginBottom: 4 }}>
                  <TypeName type={detail.packet_type} isHollow={detail.ruling.verdict !== "accepted"} />
                  <Verdict verdict={detail.ruling.verdict} code={detail.ruling.code} />
                  {detail.is_stale && <span className="badge warn">stale: rests on a retracted packet</span>}
                </div>
                <h1>{opening ? <Foreign>{opening.length > 160 ? `${opening.slice(0, 159)}…` : opening}</Foreign> : `${detail.packet_type} from ${detail.sender}`}</h1>
              </div>
              <div className="acts">
                <Link className="button" to="/runs/$runId" params={{ runId: detail.run_id }} search={{ session: detail.session_id, packet: detail.seq }}>
                  Show on the timeline
                </Link>
              </div>
            </div>
            <div className="wide-narrow">
              <div className="stack">
                <VerdictCard detail={detail} />
                <Tabs.Root className="card" defaultValue="content">
                  <Tabs.List className="tabs" aria-label="Packet">
                    <Tabs.Trigger value="content">Content</Tabs.Trigger>
                    <Tabs.Trigger value="json">JSON</Tabs.Trigger>
                    <Tabs.Trigger value="facts">Facts</Tabs.Trigger>
                  </Tabs.List>
                  <Tabs.Content value="content" className="body" style={{ padding: 14 }} tabIndex={-1}>
                    <Content detail={detail} />
                  </Tabs.Content>
                  <Tabs.Content value="json" style={{ padding: 14 }} tabIndex={-1}>
                    {detail.document ? <Json value={detail.document} /> : <Empty title="No body to show">{whyNoBody(detail, isViewer)}</Empty>}
                  </Tabs.Content>
                  <Tabs.Content value="facts" style={{ padding: 14 }} tabIndex={-1}>
                    {isViewer ? (
                      <p className="soft">Your role does not read facts.</p>
                    ) : (
                      <>
                        <p className="soft" style={{ marginBottom: 8 }}>What the rules read, beside the packet and the contract. The verdict can be computed again from them.</p>
                        <Json value={detail.facts} />
                      </>
                    )}
                  </Tabs.Content>
                </Tabs.Root>
                <Chain detail={detail} />
                <ImpactCard detail={detail} />
              </div>
              <div className="stack">
                <ProofCard detail={detail} />
                <Card title="Envelope">
                  <Envelope detail={detail} />
                </Card>
                <Card title="Path">
                  <Lifecycle detail={detail} />
                  <Hops detail={detail} />
                </Card>
                {detail.other_sessions.length > 0 && (
                  <Card title="Same id elsewhere">
                    {detail.other_sessions.map((one) => (
                      <div key={one}>
                        <PacketLink id={detail.packet_id} session={one}>{one}</PacketLink>
                      </div>
                    ))}
                  </Card>
                )}
              </div>
            </div>
          </div>
        );
      }}
    </Loaded>
  );
}
