/** The log: its heads and checkpoints, its verification (a job of the server), the key, and how somebody else checks it. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Fragment } from "react";
import { api, data as answered } from "../api/client";
import { about, checkpoints, verification } from "../api/queries";
import { Ago, Badge, Card, Foreign, useIsViewer, usePageTitle, Words } from "../parts/bits";
import { CopyButton } from "../parts/copy";
import { Empty, Loaded } from "../parts/states";
import { ExportMenu, Table, type Column } from "../parts/table";
import { download } from "../lib/export";
import { count, plural, sentence, utc } from "../lib/format";
import { findingsOf, inOrder, outcome, placeWords, progress, type Verification } from "../lib/verification";
import { useStream } from "../state/live";
import type { Schemas } from "../api/client";

type ShardCheckpoint = Schemas["ShardCheckpoint"];

/** The proof that the log only grew since the exported checkpoint; it can be checked without trust in this server. */
function ConsistencyFile({ shard }: { shard: number }) {
  const isViewer = useIsViewer();
  const load = useMutation({
    mutationFn: () => answered(api.GET("/api/v1/log/checkpoints/{shard}/consistency", { params: { path: { shard } } })),
    onSuccess: (proof) => download(`consistency-${shard}.json`, "application/json", JSON.stringify(proof)),
  });
  if (isViewer) return null;
  return (
    <>
      <button className="button small plain" title="Proves that the log only grew since then: check it with apc log check" onClick={() => load.mutate()}>
        Download
      </button>
      {load.error && <span role="alert" className="quiet">{sentence(load.error.message)}</span>}
    </>
  );
}

const COLUMNS: Column<ShardCheckpoint>[] = [
  { name: "shard", title: "Shard", value: (row) => row.shard, width: "48px", isNumber: true },
  { name: "entries", title: "Entries", value: (row) => row.next_seq - 1, cell: (row) => count(row.next_seq - 1), width: "minmax(74px, 1fr)", isNumber: true },
  {
    name: "unsigned",
    title: <span title="Entries behind the newest signed checkpoint">Signed</span>,
    value: (row) => row.next_seq - 1 - (row.tree_size ?? 0),
    cell: (row) => (row.next_seq - 1 <= (row.tree_size ?? 0) ? <Badge tone="good">all</Badge> : <Badge tone="warn">all but {count(row.next_seq - 1 - (row.tree_size ?? 0))}</Badge>),
    width: "minmax(80px, 1fr)",
  },
  { name: "recorded_at", title: "Checkpoint", value: (row) => row.recorded_at, cell: (row) => (row.recorded_at ? <Ago at={row.recorded_at} /> : <span className="quiet">none</span>), width: "minmax(80px, 1fr)" },
  { name: "root_hash", title: <span title="Of the newest signed checkpoint">Root hash</span>, value: (row) => row.root_hash, cell: (row) => (row.root_hash ? <span className="mono" title={row.root_hash}>{row.root_hash.slice(0, 12)}…</span> : <span className="quiet">none</span>), width: "minmax(110px, 1.2fr)", isExtra: true },
  { name: "exported", title: <span title="Entries of the newest checkpoint that is kept outside the database">Exported</span>, value: (row) => row.exported ?? null, cell: (row) => (row.exported ? <span title={row.exported_at ? utc(row.exported_at) : undefined}>{count(row.exported)}</span> : <span className="quiet">nowhere</span>), width: "minmax(80px, 1fr)", isNumber: true, isExtra: true },
  { name: "proof", title: "Proof", value: (row) => row.exported ?? null, cell: (row) => (row.exported ? <ConsistencyFile shard={row.shard} /> : null), width: "96px", isExtra: true },
];

function Progress({ job }: { job: Verification }) {
  const { share, words } = progress(job);
  return (
    <div className="stack" style={{ gap: 4 }}>
      <div className="meter" role="progressbar" aria-label="Verification" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)} aria-valuetext={words}>
        <i style={{ width: `${share * 100}%` }} />
      </div>
      <span className="soft num">{words}</span>
    </div>
  );
}

function Findings({ job }: { job: Verification }) {
  if (job.state !== "done" || findingsOf(job) < 2) return null;
  const unlisted = job.unlisted ?? 0;
  return (
    <details>
      <summary>{plural(findingsOf(job), "finding")}</summary>
      <ul className="refs" style={{ marginTop: 6 }}>
        {inOrder(job.findings ?? []).map((one, index) => (
          <li key={index}>
            <b>{placeWords(one)}</b>: <Foreign>{sentence(one.message)}</Foreign>
          </li>
        ))}
        {unlisted > 0 && <li className="quiet">And {plural(unlisted, "more finding")}: “apc log verify” lists them.</li>}
      </ul>
    </details>
  );
}

/**
 * A button that starts the job or cancels it, and what became of it; readers watch, viewers see nothing of it.
 * It is one button all the time, and never disabled, so that the focus stays on it.
 */
function Verifying() {
  const client = useQueryClient();
  const role = useQuery(about).data?.role;
  const isReader = role === "reader" || role === "operator";
  const found = useQuery({ ...verification, enabled: isReader });
  const act = useMutation({
    mutationFn: (name: "start" | "cancel") => answered(name === "start" ? api.POST("/api/v1/log/verify") : api.DELETE("/api/v1/log/verify")),
    onSuccess: (job) => client.setQueryData(verification.queryKey, job),
    onSettled: () => void client.invalidateQueries({ queryKey: verification.queryKey }),
  });
  if (!isReader || (found.data === undefined && !found.error)) return null;
  const job = found.data;
  const isRunning = job?.state === "running";
  const told = job && outcome(job);
  const problem = act.error?.message ?? found.error?.message ?? (isRunning ? null : job?.why_not);
  return (
    <div className="stack verify">
      {job && isRunning && <Progress job={job} />}
      <div role="status" aria-live="polite">
        {isRunning && <span className="sr">The log is being verified.</span>}
        {told && (
          <p className={`notice ${told.tone}`}>
            <span>
              <Words>{told.words}</Words> {job.ended_at && <span className="quiet"><Ago at={job.ended_at} />, by {job.by}.</span>}
            </span>
          </p>
        )}
        {job?.state === "none" && !problem && <p className="soft">Not verified since this server started.</p>}
        {problem && <p className="soft"><Words>{sentence(problem)}</Words></p>}
      </div>
      {job && <Findings job={job} />}
      {job && role === "operator" && (isRunning || !job.why_not) && (
        <button className="button" aria-disabled={act.isPending} onClick={() => act.isPending || act.mutate(isRunning ? "cancel" : "start")}>
          {isRunning ? "Cancel" : told ? "Verify again" : "Verify the log"}
        </button>
      )}
    </div>
  );
}

/** The public keys; of several shards of one signer all differ in their name alone. */
function Keys({ shards }: { shards: readonly ShardCheckpoint[] }) {
  const known = shards.filter((one) => one.public_key);
  if (known.length === 0) return <p className="soft">This server has no key of the log: who runs the log writer prints it with <code>apc log key</code>.</p>;
  return (
    <dl className="facts">
      {known.map((one) => (
        <Fragment key={one.shard}>
          <dt>Shard {one.shard}</dt>
          <dd>
            <div>Fingerprint <b className="mono" title="It is in every signature of a checkpoint">{fingerprint(one.public_key!)}</b></div>
            <span className="id">
              <span className="mono quiet key">{one.public_key}</span>
              <CopyButton text={one.public_key!} what="key" />
            </span>
          </dd>
        </Fragment>
      ))}
    </dl>
  );
}

/** The four bytes that a signature begins with: the middle of NAME+FINGERPRINT+KEY. */
function fingerprint(key: string): string {
  return key.split("+")[1] ?? "unknown";
}

function ForAuditors({ shards }: { shards: readonly ShardCheckpoint[] }) {
  return (
    <Card title="How an auditor checks it">
      <ol className="steps">
        <li>Get the public key from the person who runs the log, and not from this page: <code>apc log key</code> prints it. It must be the one below.</li>
        <li>Open a packet, download its proof, and run <code>apc log check proof.json --key KEY</code>: no server, database or network is needed.</li>
        <li>Keep a checkpoint of today (<code>apc log checkpoint</code>). Later download the proof of its shard above: it shows that the log only grew since, and nothing before it changed: <code>apc log check consistency-0.json --key KEY</code>.</li>
        <li>A whole run in one file: <code>apc log export RUN</code>, checked in the same way.</li>
      </ol>
      <h3 style={{ margin: "14px 0 6px" }}>Public key of the log</h3>
      <Keys shards={shards} />
    </Card>
  );
}

export function LogPage() {
  usePageTitle("Log");
  const heads = useQuery(checkpoints);
  useStream({}, ["checkpoints", "verification"]);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Log</h1>
          <p className="under">Every packet is an entry; checkpoints are signed. Nothing can be changed unseen.</p>
        </div>
      </div>
      <Loaded answer={heads} what="the log" lines={6}>
        {(found) =>
          found.items.length === 0 ? (
            <Card><Empty title="No entry yet">The log begins with the first packet.</Empty></Card>
          ) : (
            <>
              <Card title="Verification">
                <Verifying />
              </Card>
              <Card flush title="Heads and checkpoints" aside={<ExportMenu name="checkpoints" rows={found.items} columns={COLUMNS} />}>
                <Table label="Shards" rows={found.items} columns={COLUMNS} rowKey={(row) => row.shard} height={360} />
              </Card>
              <ForAuditors shards={found.items} />
            </>
          )
        }
      </Loaded>
    </div>
  );
}
