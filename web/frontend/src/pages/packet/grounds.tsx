/** What a packet rests on, each with its proof checked in this browser: packets, artifacts, approvals, effects. */
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useState, type ReactNode } from "react";
import type { Schemas } from "../../api/client";
import { entryProof, evidence, proof } from "../../api/queries";
import { Badge, Card, Foreign, PacketLink, Time, TypeMark, useIsViewer } from "../../parts/bits";
import { ContentLine } from "../../parts/content";
import { useFold } from "../../parts/folds";
import { Loaded } from "../../parts/states";
import { count, plural } from "../../lib/format";
import { checkProof, isOfEffect, pinnedKey, type Proof, type ProofResult } from "../../lib/proof";
import type { Tone } from "../../lib/words";
import { ApprovalLine } from "../run/outcome";

type Detail = Schemas["PacketDetail"];
type Evidence = Schemas["EvidenceAnswer"];
type Effect = Evidence["effects"][number];
type Fields = Record<string, unknown>;

const FIRST = 8;

const LOOKS: Record<ProofResult["state"], { tone: Tone; words: string }> = {
  proven: { tone: "good", words: "proven" },
  unpinned: { tone: "warn", words: "consistent" },
  unsigned: { tone: "warn", words: "consistent" },
  false: { tone: "bad", words: "not proven" },
};

interface Entry {
  shard: number;
  seq: number;
  packet_id: string;
}

/** Whether a packet is in the log as it is shown: the same check as on its own page. */
function Proven({ entry, session, type, sender }: { entry: Entry; session: string; type: string; sender: string }) {
  const isViewer = useIsViewer();
  const answer = useQuery({ ...proof(`${entry.shard}-${entry.seq}`, session), staleTime: 60_000, enabled: !isViewer });
  const isShown = useCallback(
    (fields: Fields) => fields.packet_id === entry.packet_id && fields.packet_type === type && fields.sender_agent_id === sender && fields.session_id === session,
    [entry.packet_id, session, type, sender],
  );
  return isViewer ? <span /> : <Checked answer={answer} isShown={isShown} of={entry.packet_id} />;
}

/** Whether what was last said of an effect is in the log. */
function ProvenEffect({ effect, session }: { effect: Effect; session: string }) {
  const isViewer = useIsViewer();
  const answer = useQuery({ ...entryProof(effect.shard, effect.seq), enabled: !isViewer });
  const isShown = useCallback((fields: Fields) => isOfEffect(effect, session, fields), [effect, session]);
  return isViewer ? <span /> : <Checked answer={answer} isShown={isShown} of={`${effect.shard}-${effect.seq}`} />;
}

function Checked({ answer, isShown, of }: { answer: { data?: Proof; error: Error | null }; isShown: (fields: Fields) => boolean; of: string }) {
  const [result, show] = useState<ProofResult | null>(null);
  const { data } = answer;
  useEffect(() => {
    if (!data) return;
    let isOld = false;
    void checkProof(data, pinnedKey()).then((found) => {
      const isOther = found.fields && !isShown(found.fields);
      if (!isOld) show(isOther ? { state: "false", reason: "The proven entry is another one than this page shows." } : found);
    });
    return () => {
      isOld = true;
    };
  }, [data, isShown]);
  if (answer.error) return <Badge tone="bad" title={answer.error.message}>not checked</Badge>;
  if (!result) return <span className="quiet">Checking…</span>;
  const looks = LOOKS[result.state];
  return (
    <span data-proof-of={of} data-proof-state={result.state}>
      <Badge tone={looks.tone} title={result.reason}>
        <span className="dot" />
        {looks.words}
      </Badge>
    </span>
  );
}

function Grounds({ rows, session }: { rows: Evidence["packets"]; session: string }) {
  const { shown, left, more } = useFold(rows.length, FIRST);
  // What the packet names itself comes first.
  const ordered = [...rows].sort((one, other) => Number(other.is_direct) - Number(one.is_direct) || one.seq - other.seq);
  return (
    <>
      <ul className="chain">
        {ordered.slice(0, shown).map((row) => (
          <li key={row.packet_id}>
            <TypeMark type={row.packet_type} />
            <PacketLink id={row.packet_id} session={session}>
              <span className="mono">{row.packet_type}</span>
            </PacketLink>
            <span className="soft from">
              <Foreign>{row.sender}</Foreign>
              <span className="quiet"> · {row.is_cited ? "cited" : row.is_direct ? "answered" : "through others"}</span>
              {row.is_retracted ? <Badge tone="bad">retracted</Badge> : row.is_stale && <Badge tone="warn">stale</Badge>}
            </span>
            <Proven entry={row} session={session} type={row.packet_type} sender={row.sender} />
            <span className="says">
              <ContentLine line={row.line} body={row.body} />
            </span>
          </li>
        ))}
      </ul>
      {left > 0 && (
        <button type="button" className="button small" onClick={more}>
          Show {count(left)} more
        </button>
      )}
    </>
  );
}

function Part({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div className="stack" style={{ gap: 6 }}>
      <h3>{title}</h3>
      {children}
    </div>
  );
}

function Found({ found, session }: { found: Evidence; session: string }) {
  const isEmpty = found.packets.length + found.artifacts.length + found.approvals.length + found.effects.length === 0;
  if (isEmpty) return <p className="soft">It cites nothing and answers nothing.</p>;
  return (
    <div className="stack">
      {found.approvals.length > 0 && (
        <Part title="Approvals">
          <ul className="stack" style={{ gap: 10 }}>
            {found.approvals.map((one) => (
              <li key={one.packet_id} className="with-proof">
                <ApprovalLine approval={one} session={session} />
                <Proven entry={one} session={session} type={one.packet_type} sender={one.by} />
              </li>
            ))}
          </ul>
        </Part>
      )}
      {found.packets.length > 0 && (
        <Part title="Packets">
          <Grounds rows={found.packets} session={session} />
        </Part>
      )}
      {found.artifacts.length > 0 && (
        <Part title="Artifacts">
          <Grounds rows={found.artifacts} session={session} />
        </Part>
      )}
      {found.effects.length > 0 && (
        <Part title="Effects outside the bus">
          <ul className="stack" style={{ gap: 6, fontSize: 13 }}>
            {found.effects.map((one) => (
              <li key={`${one.packet_id} ${one.agent_id} ${one.key}`} className="with-proof">
                <div>
                <b>
                  <Foreign>{one.key || "an effect"}</Foreign>
                </b>{" "}
                of <Foreign>{one.agent_id}</Foreign> <Badge tone={one.state === "unknown" ? "bad" : one.state === "claimed" ? "warn" : "good"}>{one.state}</Badge>{" "}
                <PacketLink id={one.packet_id} session={session}>
                  <Time at={one.at} />
                </PacketLink>
                {one.reference && (
                  <div className="soft">
                    <Foreign>{one.reference}</Foreign>
                  </div>
                )}
                </div>
                <ProvenEffect effect={one} session={session} />
              </li>
            ))}
          </ul>
        </Part>
      )}
      {found.total > found.packets.length + found.artifacts.length && <p className="quiet">{plural(found.total, "packet")} in all, with questions and signals.</p>}
    </div>
  );
}

export function GroundsCard({ detail }: { detail: Detail }) {
  const answer = useQuery(evidence(detail.packet_id, detail.session_id));
  return (
    <Card title="What it rests on">
      <Loaded answer={answer} what="what it rests on" lines={3}>
        {(found) => <Found found={found} session={detail.session_id} />}
      </Loaded>
    </Card>
  );
}
