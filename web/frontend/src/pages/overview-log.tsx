/** The heads of the log, and its verification: a job of the server. */
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { api, data as answered } from "../api/client";
import { about, checkpoints, verification } from "../api/queries";
import { Ago, Badge, Card, Foreign, useIsViewer, Words } from "../parts/bits";
import { Loaded } from "../parts/states";
import { download } from "../lib/export";
import { compact, count, plural, sentence } from "../lib/format";
import { findingsOf, inOrder, outcome, placeWords, progress, type Verification } from "../lib/verification";
import type { Schemas } from "../api/client";

const MOST = 8;

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
        Proof
      </button>
      {load.error && <span role="alert" className="quiet">{sentence(load.error.message)}</span>}
    </>
  );
}

function Shard({ shard }: { shard: Schemas["ShardCheckpoint"] }) {
  const lag = shard.next_seq - 1 - (shard.tree_size ?? 0);
  return (
    <dl className="facts">
      <dt>Shard {shard.shard}</dt>
      <dd className="num">{compact(shard.next_seq - 1)} entries</dd>
      <dt>Signed</dt>
      <dd>
        {lag <= 0 ? <Badge tone="good">all</Badge> : <Badge tone="warn">all but {count(lag)}</Badge>} {shard.recorded_at && <Ago at={shard.recorded_at} />}
      </dd>
      <dt>Exported</dt>
      <dd className="row">
        {shard.exported ? `${compact(shard.exported)} entries` : <span className="quiet">no checkpoint</span>}
        {shard.exported ? <ConsistencyFile shard={shard.shard} /> : null}
      </dd>
    </dl>
  );
}

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
    <div className="stack verify" style={{ gap: 8 }}>
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

export function LogCard() {
  const heads = useQuery(checkpoints);
  return (
    <Card title="Log">
      <Loaded answer={heads} what="the log" lines={3}>
        {(found) =>
          found.items.length === 0 ? (
            <p className="soft">No entry yet.</p>
          ) : (
            <div className="stack" style={{ gap: 10 }}>
              {found.items.slice(0, MOST).map((shard) => (
                <Shard key={shard.shard} shard={shard} />
              ))}
              {found.items.length > MOST && <p className="quiet">{plural(found.items.length - MOST, "more shard")}.</p>}
              <Verifying />
            </div>
          )
        }
      </Loaded>
    </Card>
  );
}
