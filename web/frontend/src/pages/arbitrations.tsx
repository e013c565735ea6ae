/** Every arbitration across runs: who won, by how much, who was refused and why. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, linkOptions, useNavigate, useSearch } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import type { Schemas } from "../api/client";
import { arbitrations, arbitrationStats } from "../api/queries";
import { Ago, Badge, Card, Foreign, PacketLink, usePageTitle } from "../parts/bits";
import { TimeRangeChoice, useTimeRange } from "../parts/range";
import { Empty, Loaded } from "../parts/states";
import { ExportMenu, Table, type Column } from "../parts/table";
import { count, plain, plural, score, shortId } from "../lib/format";
import { codeWord } from "../lib/words";
import { DIVERSITY_COLUMNS, Diversity } from "./diversity";
import { useStream } from "../state/live";

type Arbitration = Schemas["ArbitrationSummary"];
type Group = Schemas["ArbitrationGroup"];

const COLUMNS: Column<Arbitration>[] = [
  { name: "judged_at", title: "When", value: (row) => row.judged_at, cell: (row) => <Ago at={row.judged_at} />, width: "92px" },
  { name: "subject", title: "About", value: (row) => row.subject, cell: (row) => plain(row.subject), width: "92px", hiddenBelow: 1240 },
  { name: "winner", title: "Winner", value: (row) => row.winner_candidate_id, cell: (row) => <Foreign>{row.winner_candidate_id === "none" ? "nobody" : shortId(row.winner_candidate_id)}</Foreign>, width: "minmax(90px, 1.4fr)", isMain: true },
  { name: "margin", title: "Margin", value: (row) => row.margin, cell: (row) => score(row.margin), width: "68px", isNumber: true },
  { name: "candidates", title: "Candidates", value: (row) => row.candidates.length, width: "88px", isNumber: true, hiddenBelow: 1100 },
  { name: "selected", title: "Selected", value: (row) => row.selected.length, width: "76px", isNumber: true, hiddenBelow: 1240 },
  { name: "refused", title: "Refused", value: (row) => row.candidates.filter((one) => one.refused_with.length > 0).length, width: "72px", isNumber: true },
  { name: "generation", title: "Generation", value: (row) => row.generation, width: "88px", isNumber: true, isExtra: true },
  { name: "run_id", title: "Run", value: (row) => row.run_id, cell: (row) => <span className="mono quiet">{row.run_id}</span>, width: "minmax(170px, 1.6fr)", isExtra: true },
];

const NONE: readonly string[] = [];

function Groups({ rows, label }: { rows: readonly Group[]; label: string }) {
  if (rows.length === 0) return <p className="soft">None.</p>;
  const most = Math.max(...rows.map((row) => row.candidates), 1);
  return (
    <ul className="bars" aria-label={label}>
      {rows.slice(0, 8).map((row) => (
        <li key={row.name} title={`${row.candidates} candidates, ${row.selected} selected, ${row.refused} refused`}>
          <Foreign>{row.name}</Foreign>
          <span className="meter" style={{ display: "flex" }}>
            <i style={{ width: `${(row.selected / most) * 100}%`, background: "var(--good)" }} />
            <i style={{ width: `${(row.refused / most) * 100}%`, background: "var(--bad)", borderRadius: 0 }} />
          </span>
          <span className="num soft">
            {row.selected} of {row.candidates}
          </span>
        </li>
      ))}
    </ul>
  );
}

function Codes({ codes }: { codes: readonly Schemas["NamedCount"][] }) {
  if (codes.length === 0) return <p className="soft">No candidate was refused.</p>;
  const most = Math.max(...codes.map((one) => one.count));
  return (
    <ul className="bars">
      {codes.slice(0, 8).map((one) => (
        <li key={one.name} title={one.name}>
          <span>{codeWord(one.name)}</span>
          <span className="meter bad">
            <i style={{ width: `${(one.count / most) * 100}%` }} />
          </span>
          <span className="num">{count(one.count)}</span>
        </li>
      ))}
    </ul>
  );
}

/** How many decisions had which margin. */
function Margins({ margins, mean }: { margins: readonly number[]; mean: number | null }) {
  if (margins.length === 0) return <p className="soft">No decision between two candidates yet.</p>;
  const top = Math.max(...margins, 1e-6);
  const bins = Array.from({ length: 12 }, () => 0);
  for (const margin of margins) bins[Math.min(11, Math.floor((margin / top) * 12))]! += 1;
  const most = Math.max(...bins);
  return (
    <div>
      <svg viewBox="0 0 240 62" className="chart" style={{ maxHeight: 110 }} role="img" aria-label={`Margins from 0 to ${score(top)}, on average ${score(mean)}`}>
        {bins.map((number, index) => (
          <rect key={index} x={index * 20 + 1} width={18} rx={2} y={54 - (number / most) * 50} height={Math.max(1, (number / most) * 50)} fill={number ? "var(--accent)" : "var(--line)"}>
            <title>{`${number} decisions`}</title>
          </rect>
        ))}
      </svg>
      <p className="row quiet num" style={{ justifyContent: "space-between", fontSize: 12 }}>
        <span>0</span>
        <span>{score(top)}</span>
      </p>
      <p className="soft num">
        {plural(margins.length, "decision")}, on average won by {score(mean)}
      </p>
    </div>
  );
}

function Candidates({ row }: { row: Arbitration }) {
  const sorted = [...row.candidates].sort((a, b) => (a.rank ?? 1e9) - (b.rank ?? 1e9) || b.total_score - a.total_score);
  const most = Math.max(...sorted.map((one) => one.total_score), 1e-9);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => box.current?.scrollIntoView({ block: "nearest" }), [row.packet_id]);
  return (
    <div ref={box} style={{ scrollMarginTop: 64 }}>
    <Card
      title={
        <>
          {plain(row.subject)} of generation {row.generation}
        </>
      }
      aside={
        <>
          <Link to="/runs/$runId" params={{ runId: row.run_id }} search={{ session: row.session_id, at: row.seq }}>
            The run at this moment
          </Link>
          <PacketLink id={row.packet_id} session={row.session_id}>
            Open packet
          </PacketLink>
        </>
      }
    >
      <ul className="bars">
        {sorted.map((one) => (
          <li key={one.candidate_id}>
            <span>
              {one.packet_ids[0] ? (
                <PacketLink id={one.packet_ids[0]} session={row.session_id}>
                  <Foreign>{shortId(one.candidate_id)}</Foreign>
                </PacketLink>
              ) : (
                <Foreign>{one.candidate_id}</Foreign>
              )}{" "}
              {one.is_winner && <Badge tone="good">winner</Badge>}
              {one.refused_with.map((code) => (
                <Badge key={code} tone="bad" title={code}>
                  {codeWord(code)}
                </Badge>
              ))}
            </span>
            <span className="meter">
              <i style={{ width: `${(one.total_score / most) * 100}%`, background: one.is_winner ? "var(--good)" : undefined }} />
            </span>
            <span className="num">{score(one.total_score)}</span>
          </li>
        ))}
      </ul>
    </Card>
    </div>
  );
}

export function Arbitrations() {
  usePageTitle("Arbitrations");
  const { run, open } = useSearch({ from: "/arbitrations" });
  const navigate = useNavigate();
  const { range, since, until, words } = useTimeRange();
  const list = useInfiniteQuery(arbitrations({ since, until }, run));
  const stats = useQuery(arbitrationStats({ since, until }, run));
  useStream({}, ["arbitrations"]);
  const rows = list.data?.pages.flatMap((page) => page.items) ?? [];
  const opened = rows.find((row) => row.packet_id === open);
  const show = (row: Arbitration) => void navigate({ to: "/arbitrations", search: (old) => ({ ...old, open: row.packet_id === open ? undefined : row.packet_id }), replace: true, resetScroll: false });
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Arbitrations</h1>
          <p className="under">What the orchestrator compared, what it chose, and what it refused{run ? ` in ${run}` : ", across runs"}.</p>
        </div>
        <div className="acts">
          <TimeRangeChoice />
          {run && (
            <Link className="button" to="/arbitrations" search={(old) => ({ ...old, run: undefined })}>
              All runs
            </Link>
          )}
        </div>
      </div>
      <Loaded answer={list} what="arbitrations" lines={8}>
        {() =>
          rows.length === 0 ? (
            <Card>
              <Empty title={range.since || range.until ? `No arbitrations ${words}` : "No arbitrations yet"}>The orchestrator compares candidates when swarms transfer protocols, from generation 11 on, and before a run is decided.</Empty>
            </Card>
          ) : (
            <>
              <Loaded answer={stats} what="figures" lines={3}>
                {(found) => (
                  <>
                    <div className="three">
                      <Card title="Candidates by swarm">
                        <Groups rows={found.swarms.filter((one) => one.name !== "none")} label="Swarms" />
                        <p className="legend" style={{ padding: "10px 0 0", border: 0 }}>
                          <span><i className="dot" style={{ background: "var(--good)" }} /> selected</span>
                          <span><i className="dot" style={{ background: "var(--bad)" }} /> refused</span>
                        </p>
                      </Card>
                      <Card title="Refused because">
                        <Codes codes={found.codes} />
                      </Card>
                      <Card title="Decision margins">
                        <Margins margins={found.margins} mean={found.mean_margin ?? null} />
                      </Card>
                    </div>
                    <Card flush title="Diversity over generations" aside={<ExportMenu name="diversity" rows={found.diversity} columns={DIVERSITY_COLUMNS} />}>
                      <Diversity points={found.diversity} />
                    </Card>
                    {!found.is_complete && <p className="quiet">Figures of the newest {count(found.looked_at)} arbitrations.</p>}
                  </>
                )}
              </Loaded>
              {opened && <Candidates row={opened} />}
              <Card flush title="Decisions" aside={<ExportMenu name="arbitrations" rows={rows} columns={COLUMNS} />}>
                <Table
                  label="Arbitrations"
                  rows={rows}
                  columns={COLUMNS}
                  rowKey={(row) => row.packet_id}
                  selected={open ?? null}
                  onSelect={show}
                  link={(row) => linkOptions({ to: "/packets/$packetId", params: { packetId: row.packet_id }, search: { session: row.session_id } })}
                  serverSorts={NONE}
                  height={520}
                  onEnd={list.hasNextPage && !list.isFetchingNextPage ? () => void list.fetchNextPage() : undefined}
                />
              </Card>
            </>
          )
        }
      </Loaded>
    </div>
  );
}
