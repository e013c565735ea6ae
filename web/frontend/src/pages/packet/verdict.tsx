/** The verdict in words: what it means, the rule, and what would have let the packet pass. */
import type { Schemas } from "../../api/client";
import { Card, Foreign, Verdict } from "../../parts/bits";
import { duration } from "../../lib/format";

export function VerdictCard({ detail }: { detail: Schemas["PacketDetail"] }) {
  const { ruling } = detail;
  return (
    <Card title="Verdict" aside={<Verdict verdict={ruling.verdict} code={ruling.code} />}>
      <p>
        <Foreign>{ruling.words.charAt(0).toUpperCase() + ruling.words.slice(1)}</Foreign>.
      </p>
      {ruling.code && (
        <dl className="facts" style={{ marginTop: 10 }}>
          <dt>Code</dt>
          <dd className="mono">{ruling.code}</dd>
          {ruling.rule && (
            <>
              <dt>Rule</dt>
              <dd className="mono">{ruling.rule}</dd>
            </>
          )}
          {ruling.path && (
            <>
              <dt>Field</dt>
              <dd className="mono">
                <Foreign>{ruling.path}</Foreign>
              </dd>
            </>
          )}
          {ruling.message && (
            <>
              <dt>Message</dt>
              <dd>
                <Foreign>{ruling.message}</Foreign>
              </dd>
            </>
          )}
          {ruling.remedy && (
            <>
              <dt>What would pass</dt>
              <dd>{ruling.remedy}</dd>
            </>
          )}
          {ruling.retry_after_ms != null && (
            <>
              <dt>Send again after</dt>
              <dd>{duration(ruling.retry_after_ms)}</dd>
            </>
          )}
        </dl>
      )}
    </Card>
  );
}
