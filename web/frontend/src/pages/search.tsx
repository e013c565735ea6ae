/** Search over packets and runs: words of the content, ids and their ends, agents, schemas, codes. */
import { useInfiniteQuery } from "@tanstack/react-query";
import { linkOptions } from "@tanstack/react-router";
import type { Schemas } from "../api/client";
import { found } from "../api/queries";
import { Ago, Card, Foreign, Id, TypeName, useIsViewer, usePageTitle, Verdict } from "../parts/bits";
import { ContentLine } from "../parts/content";
import { FilterField, useFilters } from "../parts/filter";
import { TimeRangeChoice, useTimeRange } from "../parts/range";
import { Empty, Loaded } from "../parts/states";
import { ExportMenu, Table, type Column } from "../parts/table";
import { count, plural } from "../lib/format";
import { runColumns, runLink } from "./runs";

type Packet = Schemas["PacketSummary"];

const COLUMNS: Column<Packet>[] = [
  { name: "line", title: "Says", value: (row) => row.line, cell: (row) => <span title={row.line}><ContentLine line={row.line} body={row.body} /></span>, width: "minmax(160px, 5fr)", isMain: true },
  { name: "packet_type", title: "Type", value: (row) => row.packet_type, cell: (row) => <TypeName type={row.packet_type} />, width: "minmax(90px, 1fr)", isExtra: true },
  { name: "sender", title: "From", value: (row) => row.sender, cell: (row) => <Foreign>{row.sender}</Foreign>, width: "minmax(80px, 1fr)" },
  { name: "verdict", title: "Verdict", value: (row) => row.refusal_code ?? row.verdict, cell: (row) => <Verdict verdict={row.verdict} code={row.refusal_code} isQuiet />, width: "minmax(84px, 1.7fr)" },
  { name: "judged_at", title: "When", value: (row) => row.judged_at, cell: (row) => <Ago at={row.judged_at} />, width: "92px" },
  { name: "packet_id", title: "Id", value: (row) => row.packet_id, cell: (row) => <Id id={row.packet_id} />, width: "118px", hiddenBelow: 1240 },
];

const packetLink = (row: Packet) => linkOptions({ to: "/packets/$packetId", params: { packetId: row.packet_id }, search: { session: row.session_id } });

export function SearchPage() {
  usePageTitle("Search");
  const isViewer = useIsViewer();
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Search</h1>
          <p className="under">Words of what packets and runs say, ids or their ends, agents, schemas, codes.</p>
        </div>
      </div>
      {isViewer ? <Empty title="Your role may not read contents">What a search finds tells what packets say. Ask for the role reader.</Empty> : <Results />}
    </div>
  );
}

function Results() {
  const [search] = useFilters();
  const { since, until, words } = useTimeRange();
  const given = { text: search.q, agent: search.agent, schema: search.schema, code: search.code, run_id: search.run, since, until };
  const isAsked = Boolean(given.text || given.agent || given.schema || given.code || given.run_id);
  const answer = useInfiniteQuery({ ...found(given), enabled: isAsked });
  return (
    <>
      <Card flush>
        <div className="filters" role="search" aria-label="Search packets and runs">
          <FilterField name="q" label="Search for" placeholder="refund 4711, or the end of an id" width={300} hasFocus />
          <FilterField name="agent" label="Agent" width={120} />
          <FilterField name="schema" label="Schema" placeholder="Schema: refund/1" width={165} />
          <FilterField name="code" label="Refusal code" width={150} />
          <FilterField name="run" label="Run" width={120} />
          <TimeRangeChoice />
        </div>
        {!isAsked && <Empty title="What are you looking for?">Every word must occur; each may be the beginning of one. An id is found by its last characters, too.</Empty>}
      </Card>
      {isAsked && (
        <Loaded answer={answer} what="what was found" lines={6}>
          {(data) => {
            const [first] = data.pages;
            const packets = data.pages.flatMap((page) => page.packets);
            return (
              <>
                {first && first.runs.length > 0 && (
                  <Card flush title="Runs">
                    <Table label="Runs that were found" rows={first.runs} columns={runColumns(first.runs)} rowKey={(row) => row.run_id} link={runLink} serverSorts={[]} />
                  </Card>
                )}
                <Card flush title="Packets" aside={<ExportMenu name="packets" rows={packets} columns={COLUMNS} />}>
                  {packets.length === 0 ? (
                    <Empty title="Nothing was found">No packet {words} says this.</Empty>
                  ) : (
                    <Table label="Packets that were found" rows={packets} columns={COLUMNS} rowKey={(row) => `${row.shard}-${row.seq}`} link={packetLink} serverSorts={[]} height={640} onEnd={answer.hasNextPage && !answer.isFetchingNextPage ? () => void answer.fetchNextPage() : undefined} />
                  )}
                  <p className="quiet" style={{ padding: "8px 14px", margin: 0 }} role="status">
                    {packets.length > 0 && `${count(packets.length)}${answer.hasNextPage ? " and more" : packets.length === 1 ? " packet" : " packets"}, the newest first.`}
                    {first && first.unread > 0 && ` ${first.is_unread_whole ? "" : "More than "}${plural(first.unread, "packet")} ${words} could not be searched for words: encrypted, or no JSON.`}
                    {first?.archived_until && ` Packets up to ${new Date(first.archived_until).toLocaleString()} are in the archive, and were not searched.`}
                    {first && first.behind > 0 && ` The newest ${plural(first.behind, "entry", "entries")} of the log are not searched yet.`}
                  </p>
                </Card>
              </>
            );
          }}
        </Loaded>
      )}
    </>
  );
}
