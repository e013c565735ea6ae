/** What goes wrong, in groups: how often, since when, what helps, an example, and who knows of it. */
import { useInfiniteQuery, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, linkOptions, useNavigate, useSearch } from "@tanstack/react-router";
import { useState } from "react";
import { api, data, type Schemas } from "../api/client";
import { about, issues, occurrences } from "../api/queries";
import { Ago, Badge, Card, Foreign, PacketLink, useIsViewer, usePageTitle, Words } from "../parts/bits";
import { LongText } from "../parts/content";
import { TimeRangeChoice, useTimeRange } from "../parts/range";
import { Empty, Loaded } from "../parts/states";
import { ExportMenu, Table, type Column } from "../parts/table";
import { GROUPINGS, keyOf, KINDS, nameOf, wordsOf, type IssueGroup, type IssueKey, type IssueSearch, type TroubleKind } from "../lib/issues";
import { count, plural, sentence } from "../lib/format";
import { useStream } from "../state/live";

/** Entries that the counts are behind without a word: a busy log is always some ahead. */
const LAG = 2_000;

const TONES: Record<TroubleKind, "bad" | "warn"> = { refusal: "warn", failure: "bad", dead_letter: "bad", verification: "bad" };

/** How often in each part of the time. */
function Bars({ values, words }: { values: readonly number[]; words: string }) {
  const most = Math.max(1, ...values);
  return (
    <svg className="spark" viewBox={`0 0 ${values.length * 4} 20`} preserveAspectRatio="none" role="img" aria-label={`${words}, at most ${count(most)} in one of ${values.length} parts of the time`}>
      {values.map((value, at) => value > 0 && <rect key={at} x={at * 4} width={3} y={20 - Math.max(2, (value / most) * 20)} height={Math.max(2, (value / most) * 20)} />)}
    </svg>
  );
}

function State({ group }: { group: IssueGroup }) {
  const known = group.acknowledged;
  if (!group.is_open) return <Badge tone="good" title={known?.note ?? undefined}>{known ? `known to ${known.by}` : "known"}</Badge>;
  return <Badge tone="bad">{known ? "again" : "open"}</Badge>;
}

function Name({ group }: { group: IssueGroup }) {
  const words = wordsOf(keyOf(group));
  return (
    <>
      <Foreign>{words.plain}</Foreign> <span className="quiet mono"><Foreign>{words.protocol}</Foreign></span>
    </>
  );
}

const COLUMNS: Column<IssueGroup>[] = [
  { name: "kind", title: "Kind", value: (row) => row.kind, cell: (row) => <Badge tone={TONES[row.kind]}>{KINDS[row.kind].one}</Badge>, width: "minmax(0, 132px)" },
  { name: "name", title: "What", value: (row) => nameOf(keyOf(row)), cell: (row) => <Name group={row} />, width: "minmax(180px, 5fr)", isMain: true },
  { name: "count", title: "Count", value: (row) => row.count, cell: (row) => count(row.count), width: "58px", isNumber: true },
  { name: "bins", title: "Over time", value: (row) => row.bins.join(" "), cell: (row) => <Bars values={row.bins} words={plural(row.count, "time")} />, width: "minmax(40px, 150px)", hiddenBelow: 1100 },
  { name: "agents", title: "Agents", value: (row) => row.agents, width: "66px", isNumber: true, hiddenBelow: 1100 },
  { name: "first_at", title: "First", value: (row) => row.first_at, cell: (row) => <Ago at={row.first_at} />, width: "96px", hiddenBelow: 1100 },
  { name: "last_at", title: "Last", value: (row) => row.last_at, cell: (row) => <Ago at={row.last_at} />, width: "86px" },
  { name: "state", title: "State", value: (row) => (row.is_open ? "open" : "known"), cell: (row) => <State group={row} />, width: "minmax(64px, 110px)", isExtra: true },
];

function Acknowledge({ group }: { group: IssueGroup }) {
  const client = useQueryClient();
  const server = useQuery(about).data;
  const [note, write] = useState("");
  const act = useMutation({
    mutationFn: () => data(api.POST("/api/v1/issues/acknowledge", { body: { ...bodyOf(keyOf(group)), note: note.trim(), seen_until: group.last_at } })),
    onSuccess: () => write(""),
    onSettled: () => void client.invalidateQueries({ queryKey: ["issues"] }),
  });
  const known = group.acknowledged;
  return (
    <>
      {known && (
        <p className={`notice ${group.is_open ? "warn" : "good"}`}>
          <span>
            <Foreign>{known.by}</Foreign> knows of it, <Ago at={known.at} />{known.note && <>: <Foreign>{known.note}</Foreign></>}.{group.is_open && <> It happened again <Ago at={group.last_at} />.</>}{" "}
            <span className="quiet">Entry {known.shard}-{known.seq} of the log.</span>
          </span>
        </p>
      )}
      {group.is_open && server?.can_act && (
        <form className="row" onSubmit={(event) => { event.preventDefault(); act.mutate(); }}>
          <input className="field grow" aria-label="What is being done" placeholder="What is being done about it (kept in the log)" value={note} onChange={(event) => write(event.target.value)} maxLength={300} />
          <button className="button" disabled={act.isPending || note.trim() === ""}>Acknowledge</button>
        </form>
      )}
      {act.error && <p role="alert" className="notice bad">{act.error.message}</p>}
    </>
  );
}

const bodyOf = ({ kind, code, rule, field, agent_id }: IssueKey) => ({ kind, code: code ?? null, rule: rule ?? null, field: field ?? null, agent_id: agent_id ?? null });

function Occurrence({ one }: { one: Schemas["IssueOccurrence"] }) {
  const isViewer = useIsViewer();
  return (
    <li className="letter">
      <div className="row">
        <Foreign>{one.agent_id || "unknown sender"}</Foreign>
        <span className="quiet mono">{[one.code, one.rule, one.field].filter(Boolean).join(" · ")}</span>
        <span className="quiet" style={{ marginLeft: "auto" }}><Ago at={one.at} /></span>
      </div>
      {one.message && <p><LongText text={one.message} /></p>}
      {isViewer && <p className="quiet">Your role may not read texts.</p>}
      <p className="soft row">
        {one.packet_id && <PacketLink id={one.packet_id} session={one.session_id ?? undefined}>Open packet</PacketLink>}
        {one.run_id && <>·<Link to="/runs/$runId" params={{ runId: one.run_id }} search={{ session: one.session_id ?? undefined }}>Open run</Link></>}
      </p>
    </li>
  );
}

function Group({ group, since, until, run }: { group: IssueGroup; since?: string; until?: string; run?: string }) {
  const { kind, code, rule, field, agent_id } = keyOf(group);
  const isViewer = useIsViewer();
  // A viewer's groups have no exception, and an empty name is one of those without any.
  const answer = useInfiniteQuery(occurrences({ since, until, run_id: run, kind: [kind], code: code || undefined, rule: (!isViewer && rule) || undefined, field: (!isViewer && field) || undefined, agent_id: agent_id || undefined }));
  const words = wordsOf(keyOf(group));
  return (
    <Card title={<Foreign>{sentence(words.plain).replace(/\.$/, "")}</Foreign>} aside={<State group={group} />} flush>
      <div className="body stack" style={{ padding: 14 }}>
        <dl className="facts">
          <dt>Kind</dt><dd>{KINDS[kind].one} <span className="quiet mono"><Foreign>{words.protocol}</Foreign></span></dd>
          <dt>How often</dt><dd>{plural(group.count, "time")} at {plural(group.agents, "agent")}, first <Ago at={group.first_at} />, last <Ago at={group.last_at} /></dd>
          {group.remedy && <><dt>What helps</dt><dd><Words>{sentence(group.remedy)}</Words></dd></>}
          {kind === "dead_letter" && <><dt>Act</dt><dd><Link to="/inbox" search={{ view: "dead" }}>Deliver them again, or discard them, in the inbox</Link></dd></>}
        </dl>
        <Acknowledge group={group} />
      </div>
      <Loaded answer={answer} what="examples" lines={3}>
        {(found) => (
          <>
            <ul>{found.pages.flatMap((page) => page.items).map((one) => <Occurrence key={`${one.shard}-${one.seq}`} one={one} />)}</ul>
            {answer.hasNextPage && <div style={{ padding: 14 }}><button className="button" onClick={() => void answer.fetchNextPage()}>Show more</button></div>}
          </>
        )}
      </Loaded>
    </Card>
  );
}

function Choice<Name extends string>({ label, value, names, choose }: { label: string; value: Name | undefined; names: readonly [Name | undefined, string][]; choose: (name: Name | undefined) => void }) {
  return (
    <select className="field" aria-label={label} value={value ?? ""} onChange={(event) => choose((event.target.value || undefined) as Name | undefined)}>
      {names.map(([name, words]) => <option key={words} value={name ?? ""}>{words}</option>)}
    </select>
  );
}

const KIND_NAMES: [TroubleKind | undefined, string][] = [[undefined, "All kinds"], ...Object.entries(KINDS).map(([kind, { many }]): [TroubleKind, string] => [kind as TroubleKind, many])];
const STATE_NAMES: ["open" | "acknowledged" | undefined, string][] = [[undefined, "Open and known"], ["open", "Open"], ["acknowledged", "Known"]];

export function IssuesPage() {
  usePageTitle("Issues");
  const search = useSearch({ from: "/issues" });
  const navigate = useNavigate();
  const isViewer = useIsViewer();
  const { since, until, words } = useTimeRange("1d");
  const by = search.group ?? "code";
  const answer = useQuery(issues({ by, since, until, kind: search.kind ? [search.kind] : undefined, state: search.status, agent_id: search.agent, run_id: search.run, bins: 24 }));
  useStream({}, ["issues"]);
  const show = (change: IssueSearch) => void navigate({ to: "/issues", search: { ...search, issue: undefined, ...change }, replace: true, resetScroll: false });
  const chosen = search.issue && nameOf(search.issue);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Issues</h1>
          <p className="under">What goes wrong, in groups.</p>
        </div>
      </div>
      <Card flush>
        <div className="filters">
          <TimeRangeChoice otherwise="1d" />
          <div className="switch" role="group" aria-label="Group by">
            {GROUPINGS.filter((one) => !isViewer || one.by !== "field").map((one) => (
              <button key={one.by} type="button" aria-pressed={by === one.by} onClick={() => show({ group: one.by === "code" ? undefined : one.by })}>{one.name}</button>
            ))}
          </div>
          <Choice label="Kind" value={search.kind} names={KIND_NAMES} choose={(kind) => show({ kind })} />
          <Choice label="State" value={search.status} names={STATE_NAMES} choose={(status) => show({ status })} />
          {search.agent && <button type="button" className="button small" onClick={() => show({ agent: undefined })}>Agent <Foreign>{search.agent}</Foreign> ×</button>}
          {search.run && <button type="button" className="button small" onClick={() => show({ run: undefined })}>One run ×</button>}
          <span style={{ marginLeft: "auto" }}><ExportMenu name="issues" rows={answer.data?.groups ?? []} columns={COLUMNS} /></span>
        </div>
        <Loaded answer={answer} what="issues">
          {(found) => (
            <>
              {found.behind > LAG && <p className="notice neutral" style={{ margin: 14 }}>{plural(found.behind, "entry", "entries")} of the log not counted yet.</p>}
              {found.groups.length === 0 ? (
                <Empty title={`Nothing went wrong ${words}`}>Refusals, failures of handlers, dead letters and failed verifications appear here.</Empty>
              ) : (
                <Table label="Issues" rows={found.groups} columns={COLUMNS} rowKey={(row) => nameOf(keyOf(row))} selected={chosen ?? null} link={(row) => linkOptions({ to: "/issues", search: { ...search, issue: keyOf(row) }, replace: true, resetScroll: false })} />
              )}
              {!found.is_complete && <p className="quiet" style={{ padding: 14 }}>There are more groups than are shown: narrow them.</p>}
            </>
          )}
        </Loaded>
      </Card>
      {search.issue && answer.data && (answer.data.groups.some((one) => nameOf(keyOf(one)) === chosen) ? (
        <Group key={chosen} group={answer.data.groups.find((one) => nameOf(keyOf(one)) === chosen)!} since={since} until={until} run={search.run} />
      ) : (
        <Card><Empty title="Not among these">The issue of this address is not among those that the filters leave.</Empty></Card>
      ))}
    </div>
  );
}
