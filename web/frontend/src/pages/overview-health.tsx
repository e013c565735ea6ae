/** Whether gate and log writer work, how far they are behind, and the alerts that fire. */
import { useQuery } from "@tanstack/react-query";
import { system } from "../api/queries";
import { Badge, Card, Words } from "../parts/bits";
import { Loaded } from "../parts/states";
import { count, plural, sentence } from "../lib/format";
import type { Schemas } from "../api/client";

type Service = Schemas["ServiceHealth"];

const NAMES: Record<Service["service"], string> = { gate: "Gate", log_writer: "Log writer" };
const TONES: Record<Service["state"], "good" | "bad" | "neutral"> = { running: "good", stopped: "bad", unknown: "neutral" };
const MOST = 8;

function delayWords(seconds: number): string {
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms behind` : `${seconds.toFixed(1)} s behind`;
}

function ServiceRow({ one, hasSeveral }: { one: Service; hasSeveral: boolean }) {
  const lag = [one.waiting !== null ? `${count(one.waiting)} waiting` : "", one.delay_seconds !== null ? delayWords(one.delay_seconds) : ""].filter(Boolean).join(", ");
  return (
    <>
      <dt>
        {NAMES[one.service]}
        {hasSeveral && <span className="quiet num"> {one.shard}</span>}
      </dt>
      <dd className="row" title={sentence(one.words)}>
        <Badge tone={TONES[one.state]}>{one.state}</Badge>
        <span className="quiet num">{lag}</span>
      </dd>
    </>
  );
}

/** Alerts stand first on the page, and only while some fire. */
export function Alerts() {
  const alerts = useQuery(system).data?.alerts ?? [];
  if (alerts.length === 0) return null;
  return (
    <ul className="stack" style={{ gap: 6 }} aria-label="Alerts">
      {alerts.map((one, index) => (
        <li key={index} className={`notice ${one.severity === "critical" ? "bad" : "warn"}`}>
          <span>
            <b>{one.severity === "critical" ? "Critical" : "Warning"}</b>: <Words>{sentence(one.words)}</Words> <code className="quiet">{one.name}</code>
          </span>
        </li>
      ))}
    </ul>
  );
}

export function Services() {
  const answer = useQuery(system);
  return (
    <Card title="Services">
      <Loaded answer={answer} what="the services" lines={3}>
        {(found) => {
          const shards = new Set(found.services.map((one) => one.shard)).size;
          const shown = found.is_complete ? [...found.services].sort((a, b) => Number(a.state === "running") - Number(b.state === "running")).slice(0, MOST) : [];
          return (
            <div className="stack" style={{ gap: 8 }}>
              {!found.is_complete && <p className="soft"><Words>{sentence(found.words)}</Words></p>}
              <dl className="facts">
                {shown.map((one) => <ServiceRow key={`${one.service} ${one.shard}`} one={one} hasSeveral={shards > 1} />)}
                <dt>Agents</dt>
                <dd className="row">
                  {found.agents === 0 ? <span className="quiet">none registered</span> : <Badge tone={found.alive === found.agents ? "good" : found.alive > 0 ? "warn" : "neutral"}>{`${found.alive} of ${found.agents} alive`}</Badge>}
                </dd>
              </dl>
              {found.is_complete && found.services.length > MOST && <p className="quiet">{plural(found.services.length - MOST, "more service")} that {found.services.length - MOST === 1 ? "runs" : "run"}.</p>}
            </div>
          );
        }}
      </Loaded>
    </Card>
  );
}
