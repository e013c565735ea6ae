/** One packet: what it says, the verdict and why, its path, its causes and effects, and the proof. */
import { useQuery } from "@tanstack/react-query";
import { Link, useParams, useSearch } from "@tanstack/react-router";
import { Tabs } from "radix-ui";
import type { Schemas } from "../../api/client";
import { packet, schemaDocument } from "../../api/queries";
import { Card, Foreign, Id, PacketLink, Time, TypeName, Verdict, useIsViewer, usePageTitle } from "../../parts/bits";
import { whyNoContent } from "../../parts/content";
import { Json } from "../../parts/json";
import { Empty, Loaded } from "../../parts/states";
import { isObject, titleOf, typedOf } from "../../lib/content";
import { bytes, cut, plain, shortHashes, shortId } from "../../lib/format";
import { useStream } from "../../state/live";
import { Chain } from "./chain";
import { GroundsCard } from "./grounds";
import { Content } from "./content";
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
    ["Phase", [plain(detail.run_phase), detail.round > 1 && `round ${detail.round}`, detail.generation > 0 && `generation ${detail.generation}`].filter(Boolean).join(", ")],
    ["Judged", <Time at={detail.judged_at} />],
    ["Entry", <span className="num">shard {detail.shard}, number {detail.seq}</span>],
    ["Id", <Id id={detail.packet_id} isWhole />],
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

/** Characters of a heading; the whole text is in the content. */
const LONGEST_TITLE = 160;

/** What the packet is called: the field that its schema marks as title, else what it says in a line. */
function Heading({ detail }: { detail: Detail }) {
  const typed = detail.packet_type === "MESSAGE" && isObject(detail.document?.payload) ? typedOf(detail.document.payload) : null;
  const schema = useQuery({ ...schemaDocument(typed?.schema ?? ""), enabled: typed !== null });
  const title = typed && schema.data ? titleOf(typed.content, schema.data.document) : null;
  if (!detail.line) return <h1>{`${detail.packet_type} from ${detail.sender}`}</h1>;
  return <h1 style={{ visibility: schema.isLoading ? "hidden" : undefined }}><Foreign>{cut(title ?? shortHashes(detail.line), LONGEST_TITLE)}</Foreign></h1>;
}

export function PacketPage() {
  const { packetId } = useParams({ from: "/packets/$packetId" });
  const { session } = useSearch({ from: "/packets/$packetId" });
  const answer = useQuery(packet(packetId, session));
  const isViewer = useIsViewer();
  usePageTitle(answer.data ? `${answer.data.packet_type} ${shortId(answer.data.packet_id)}` : "Packet");
  useStream({ session_id: answer.data?.session_id ?? session }, ["packet", "tree", "impact", "evidence"]);
  return (
    <Loaded answer={answer} what="the packet" lines={10}>
      {(detail) => {
        return (
          <div className="stack">
            <div className="title">
              <div style={{ maxWidth: 900 }}>
                <div className="row" style={{ marginBottom: 4 }}>
                  <TypeName type={detail.packet_type} isHollow={detail.ruling.verdict !== "accepted"} />
                  <Verdict verdict={detail.ruling.verdict} code={detail.ruling.code} />
                  {detail.is_stale && <span className="badge warn">stale: rests on a retracted packet</span>}
                </div>
                <Heading detail={detail} />
              </div>
              <div className="acts">
                <Link className="button" to="/runs/$runId" params={{ runId: detail.run_id }} search={{ session: detail.session_id, packet: detail.seq }}>
                  Show on the timeline
                </Link>
              </div>
            </div>
            <div className="wide-narrow">
              <div className="stack">
                {detail.ruling.verdict !== "accepted" && <VerdictCard detail={detail} />}
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
                    {detail.document ? <Json value={detail.document} /> : <Empty title="No body to show">{whyNoContent(detail.body, isViewer)}</Empty>}
                  </Tabs.Content>
                  <Tabs.Content value="facts" style={{ padding: 14 }} tabIndex={-1}>
                    {isViewer ? (
                      <p className="soft">Your role may not read facts.</p>
                    ) : (
                      <>
                        <p className="soft" style={{ marginBottom: 8 }}>What the rules read, beside the packet and the contract. The verdict can be computed again from them.</p>
                        <Json value={detail.facts} />
                      </>
                    )}
                  </Tabs.Content>
                </Tabs.Root>
                <GroundsCard detail={detail} />
                <ImpactCard detail={detail} />
                <Chain detail={detail} />
              </div>
              <div className="stack">
                <ProofCard detail={detail} />
                {detail.ruling.verdict === "accepted" && <VerdictCard detail={detail} />}
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
