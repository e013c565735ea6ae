/** How an agent is registered: its queues, quota, rights and keys. */
import { Link } from "@tanstack/react-router";
import { Badge, Foreign } from "../../parts/bits";
import { isStuck, queueWords, quotaWords, type Agent } from "../../lib/agents";
import { count, sentence } from "../../lib/format";

function Names({ names, none }: { names: readonly string[]; none: string }) {
  return names.length === 0 ? <span className="quiet">{none}</span> : <span className="row" style={{ gap: 4 }}>{names.map((name) => <Badge key={name}><Foreign>{name}</Foreign></Badge>)}</span>;
}

export function Registration({ agent }: { agent: Agent }) {
  return (
    <dl className="facts wide">
      <dt>Queues</dt>
      <dd>{isStuck(agent) ? <Badge tone="warn">{queueWords(agent)}</Badge> : sentence(queueWords(agent))}</dd>
      <dt>Open deliveries</dt>
      <dd className="num">{count(agent.open_deliveries)} <span className="quiet">of {count(agent.most_open)}; beyond that the gate refuses packets to it (OVERLOADED)</span></dd>
      <dt>Quota</dt>
      <dd className="num">{sentence(quotaWords(agent))} <span className="quiet">{agent.quota ? "Beyond that the gate refuses its packets (QUOTA_EXCEEDED)." : ""}</span></dd>
      <dt>Rights</dt>
      <dd><Names names={agent.rights} none="none beyond sending its own packets" /></dd>
      <dt>Handles</dt>
      <dd><Names names={agent.handles} none="nothing" /></dd>
      <dt>Keys</dt>
      <dd className="mono"><Names names={agent.keys} none="none: it signs nothing" /></dd>
      <dt>Broker user</dt>
      <dd className="mono">{agent.broker_user ? <Foreign>{agent.broker_user}</Foreign> : <span className="quiet">none</span>}</dd>
      {agent.host && (
        <>
          <dt>Host</dt>
          <dd><Foreign>{agent.host}</Foreign> <span className="quiet">Its agents share two queues and the broker user.</span></dd>
        </>
      )}
      <dt>More</dt>
      <dd className="row">
        <Link to="/inbox" search={{ view: "dead" }}>Dead letters</Link>
        <Link to="/inbox" search={{ view: "tasks" }}>Failed tasks</Link>
      </dd>
    </dl>
  );
}
