/** One agent: whether it lives, what it did and spent, how long it takes, what it may. */
import { useQuery } from "@tanstack/react-query";
import { Link, linkOptions, useParams } from "@tanstack/react-router";
import type { Schemas } from "../../api/client";
import { agent, agents } from "../../api/queries";
import { ApiProblem } from "../../api/client";
import { Bars } from "../../parts/bars";
import { Ago, Badge, Card, Foreign, Id, TypeName, usePageTitle, Verdict, Words } from "../../parts/bits";
import { TimeRangeChoice, useTimeRange } from "../../parts/range";
import { Empty, Loaded } from "../../parts/states";
import { Table, type Column } from "../../parts/table";
import { STATE_HINTS, STATE_TONES, stateOf } from "../../lib/agents";
import { compact, costText, count, duration, plural, sentence } from "../../lib/format";
import { alike } from "../../lib/alike";
import { useStream } from "../../state/live";
import { Says } from "../run/packets";
import { Registration } from "./card";
import { DayTable } from "./days";

type Packet = Schemas["AgentPacket"];
type Detail = Schemas["AgentDetail"];
const DAY = 86_400_000;
const NONE: readonly string[] = [];

const LATEST = (own: string): Column<Packet>[] => [
  { name: "type", title: "Type", value: (row) => row.packet_type, cell: (row) => <TypeName type={row.packet_type} isHollow={row.verdict !== "accepted"} />, width: "minmax(88px, 130px)" },
  { name: "who", title: "With", value: (row) => row.sender, cell: (row) => (row.sender === own ? <><span className="quiet">to</span> <Foreign>{row.recipients.join(", ") || "nobody"}</Foreign></> : <><span className="quiet">from</span> <Foreign>{row.sender}</Foreign></>), width: "minmax(56px, 1fr)" },
  { name: "says", title: "Content", value: (row) => row.seq, cell: (row) => <Says sessionId={row.session_id} seq={row.seq} />, width: "minmax(110px, 3fr)", isMain: true },
  { name: "verdict", title: "Verdict", value: (row) => row.verdict, cell: (row) => <Verdict verdict={row.verdict} code={row.refusal_code} isQuiet />, width: "minmax(72px, 1fr)" },
  { name: "packet_id", title: "Packet", value: (row) => row.packet_id, cell: (row) => <Id id={row.packet_id} />, width: "112px", hiddenBelow: 1240 },
  { name: "at", title: "When", value: (row) => row.at, cell: (row) => <Ago at={row.at} />, width: "80px" },
];

function Figures({ detail, words }: { detail: Detail; words: string }) {
  const sum = (of: (day: Schemas["AgentDay"]) => number) => detail.days.reduce((total, day) => total + of(day), 0);
  const refused = sum((day) => day.refused);
  const [cost, tokens] = [sum((day) => day.cost), sum((day) => day.tokens)];
  const failed = sum((day) => day.failed);
  const figures: [string, string, React.ReactNode][] = [
    ["Cost", "As its handlers reported it", cost ? costText(cost) : "–"],
    ["Tokens", "As its handlers reported them", tokens ? compact(tokens) : "–"],
    ["Sent", "Packets, without HEARTBEATs", <>{compact(sum((day) => day.packets))} <small>{refused ? `${count(refused)} refused` : ""}</small></>],
    ["Handled", "Attempts of its handlers that ended with an outcome", <>{compact(sum((day) => day.handled))} <small>{failed ? `${count(failed)} failed` : ""}</small></>],
    ["Latency, p50", "Half of its deliveries had their outcome within this time after the verdict; ±9 %", detail.p50_ms == null ? "–" : duration(detail.p50_ms)],
    ["Latency, p95", "95 of 100 deliveries had their outcome within this time; ±9 %", detail.p95_ms == null ? "–" : duration(detail.p95_ms)],
  ];
  return (
    <dl className="figures" aria-label={`Figures ${words}`}>
      {figures.map(([name, hint, value]) => (
        <div className="figure" key={name} title={hint}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function CostByDay({ days }: { days: readonly Schemas["AgentDay"][] }) {
  const has = days.some((day) => day.cost > 0);
  if (days.length < 2) return null;
  const bars = days.map((day) => ({ at: Date.parse(`${day.day}T00:00:00Z`), value: has ? day.cost : day.packets, bad: has ? 0 : day.refused }));
  return (
    <div style={{ padding: "14px 14px 4px" }}>
      <Bars bars={bars} from={Math.min(...bars.map((bar) => bar.at))} until={Math.max(...bars.map((bar) => bar.at)) + DAY} step={DAY} what={has ? "cost" : "packets"} say={has ? costText : count} badWhat="refused" />
    </div>
  );
}

function Unknown({ name }: { name: string }) {
  const known = useQuery(agents).data?.items.map((one) => one.agent_id) ?? [];
  const near = alike(name, known);
  return (
    <Card>
      <Empty title="There is no such agent">
        Nobody is registered as “<Foreign>{name}</Foreign>”.{" "}
        {near.length > 0 && (
          <>
            Agents like it: {near.map((one, index) => <span key={one}>{index > 0 && ", "}<Link to="/agents/$agentId" params={{ agentId: one }}><Foreign>{one}</Foreign></Link></span>)}.
          </>
        )}
      </Empty>
    </Card>
  );
}

export function AgentPage() {
  const { agentId } = useParams({ from: "/agents/$agentId" });
  usePageTitle(agentId);
  const range = useTimeRange("7d");
  const answer = useQuery(agent(agentId, { since: range.since ?? "1970-01-01T00:00:00Z", until: range.until }));
  useStream({}, ["agents"]);
  if (answer.error instanceof ApiProblem && answer.error.status === 404) return <Unknown name={agentId} />;
  return (
    <Loaded answer={answer} what="the agent" lines={8}>
      {(detail) => {
        const state = stateOf(detail.agent);
        const latest = detail.latest;
        return (
          <div className="stack">
            <div className="title">
              <div>
                <h1><Foreign>{detail.agent.agent_id}</Foreign></h1>
                <p className="under row">
                  <Badge tone={STATE_TONES[state]} title={STATE_HINTS[state]}>{state}</Badge>
                  <span><Foreign>{detail.agent.role}</Foreign> in swarm <Foreign>{detail.agent.swarm}</Foreign></span>
                  {detail.agent.last_seen && <span className="quiet">heard <Ago at={detail.agent.last_seen} /></span>}
                </p>
              </div>
              <div className="acts"><TimeRangeChoice otherwise="7d" /></div>
            </div>
            {!detail.is_complete && <p className="notice neutral"><span>Its queues are unknown. <Words>{sentence(detail.words ?? "nobody can say")}</Words></span></p>}
            <Card flush title={`What it did ${range.words}`}>
              <Figures detail={detail} words={range.words} />
            </Card>
            <Card flush title="By day">
              <CostByDay days={detail.days} />
              <DayTable days={detail.days} behind={detail.behind} isOfOne name={`days-${detail.agent.agent_id}`} />
            </Card>
            <div className="wide-narrow">
              <Card flush title="Last packets" aside={<span className="quiet num">{plural(latest.length, "packet")} it sent or got</span>}>
                {latest.length === 0 ? <Empty title="No packets yet" /> : <Table label="Last packets" rows={latest} columns={LATEST(detail.agent.agent_id)} rowKey={(row) => `${row.shard}-${row.seq}`} link={(row) => linkOptions({ to: "/packets/$packetId", params: { packetId: `${row.shard}-${row.seq}` }, search: { session: row.session_id } })} serverSorts={NONE} height={720} />}
              </Card>
              <Card title="Registration">
                <Registration agent={detail.agent} />
              </Card>
            </div>
          </div>
        );
      }}
    </Loaded>
  );
}
