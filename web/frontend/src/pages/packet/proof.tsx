/** The proof, checked in this browser: green with the reader's key, amber without one, red otherwise. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import type { Schemas } from "../../api/client";
import { ApiProblem } from "../../api/client";
import { proof } from "../../api/queries";
import { Card, Foreign, Words } from "../../parts/bits";
import { count, sentence } from "../../lib/format";
import { download } from "../../lib/export";
import { checkProof, differenceOf, pinKey, pinnedKey, type ProofResult, type ProofState } from "../../lib/proof";

type Shown = Omit<ProofResult, "state"> & { state: ProofState | "unchecked" };

const LOOKS: Record<Shown["state"], { tone: string; title: string }> = {
  proven: { tone: "good", title: "Proven" },
  unpinned: { tone: "warn", title: "Consistent, not proven" },
  unsigned: { tone: "warn", title: "Consistent, signature not checked" },
  false: { tone: "bad", title: "Not proven" },
  unchecked: { tone: "bad", title: "Not checked" },
};

/** Red in any case; but a server that does not answer has disproved nothing, and the title says so. */
function withoutProof(error: Error): Shown {
  if (!(error instanceof ApiProblem)) return { state: "unchecked", reason: "The proof could not be loaded." };
  return { state: error.code === "TREE_BROKEN" ? "false" : "unchecked", reason: error.detail };
}

function KeyForm({ pinned, pin }: { pinned: string; pin: (key: string) => void }) {
  const [key, type] = useState(pinned);
  return (
    <details>
      <summary>{pinned ? "Your key" : "Paste the key you trust"}</summary>
      <form
        className="stack"
        style={{ gap: 8, marginTop: 8 }}
        onSubmit={(event) => {
          event.preventDefault();
          pin(key.trim());
        }}
      >
        <textarea className="field" aria-label="Public key of the log" rows={3} spellCheck={false} placeholder="Output of: apc log key" value={key} onChange={(event) => type(event.target.value)} />
        <div className="row">
          <button className="button small">{key.trim() ? "Check with this key" : "Check without a key"}</button>
        </div>
        <p className="quiet">Take it from whoever runs the log, not from this page. It stays in this browser.</p>
      </form>
    </details>
  );
}

export function ProofCard({ detail }: { detail: Schemas["PacketDetail"] }) {
  const [pinned, change] = useState(() => pinnedKey() ?? "");
  const answer = useQuery(proof(`${detail.shard}-${detail.seq}`, detail.session_id));
  const [result, show] = useState<ProofResult | null>(null);
  useEffect(() => {
    if (!answer.data) return;
    let isOld = false;
    void checkProof(answer.data, pinned || null).then((found) => {
      if (isOld) return;
      const other = found.fields && differenceOf(detail, found.fields);
      show(other ? { state: "false", reason: `Not proven: this page shows another ${other} than the proven entry.` } : found);
    });
    return () => {
      isOld = true;
    };
  }, [answer.data, pinned, detail]);

  function pin(key: string): void {
    pinKey(key);
    change(key);
  }

  const isWithheld = answer.error instanceof ApiProblem && answer.error.code === "NO_ROLE";
  const failed = answer.error ? withoutProof(answer.error) : null;
  const shown: Shown | null = answer.data ? result : failed;
  const looks = shown && LOOKS[shown.state];
  return (
    <Card
      title="Proof"
      aside={
        answer.data && (
          <button className="button small plain" onClick={() => download(`proof-${detail.packet_id}.json`, "application/json", JSON.stringify(answer.data))}>
            Download
          </button>
        )
      }
    >
      <div className="stack" style={{ gap: 10 }}>
        {isWithheld ? (
          <p className="soft">Your role may not read proofs.</p>
        ) : shown && looks ? (
          <div className={`notice ${looks.tone}`} role="status" data-proof={shown.state}>
            <div>
              <strong>{looks.title}.</strong> <Words>{sentence(shown.reason)}</Words>
            </div>
          </div>
        ) : (
          <div className="notice neutral" role="status">
            Checking…
          </div>
        )}
        {shown?.fields && (
          <dl className="facts">
            <dt>Type</dt>
            <dd className="mono">{String(shown.fields.packet_type)}</dd>
            <dt>Sender</dt>
            <dd>
              <Foreign>{String(shown.fields.sender_agent_id)}</Foreign>
            </dd>
            <dt>On arrival</dt>
            <dd>
              {String(shown.fields.verdict)}
              {shown.fields.verdict === "held" && detail.verdict !== "held" && <span className="quiet">; {detail.verdict} later, by another entry</span>}
            </dd>
            <dt>Log</dt>
            <dd>
              <Foreign>{shown.origin ?? ""}</Foreign>, {count(shown.size ?? 0)} entries
            </dd>
          </dl>
        )}
        {!isWithheld && <KeyForm pinned={pinned} pin={pin} />}
        <p className="quiet">
          Checked in this browser with SHA-256 and Ed25519. If you distrust this server, download the proof and run <code>apc log check</code>.
        </p>
      </div>
    </Card>
  );
}
