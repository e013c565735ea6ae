/** The verdict in words: what it means, the rule, and what would have let the packet pass. */
import { Fragment } from "react";
import type { Schemas } from "../../api/client";
import { Card, Foreign } from "../../parts/bits";
import { duration, sentence } from "../../lib/format";

export function VerdictCard({ detail }: { detail: Schemas["PacketDetail"] }) {
  const { ruling } = detail;
  return (
    <Card title="Verdict">
      <p>
        <Foreign>{sentence(ruling.words)}</Foreign>
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
          {ruling.requires && (
            <>
              <dt>Requires</dt>
              <dd className="mono">
                <Foreign>{ruling.requires}</Foreign>
              </dd>
            </>
          )}
          {Object.entries(ruling.values ?? {}).map(([reading, value]) => (
            <Fragment key={reading}>
              <dt className="mono">
                <Foreign>{reading}</Foreign>
              </dt>
              <dd className="mono">
                <Foreign>{JSON.stringify(value)}</Foreign>
              </dd>
            </Fragment>
          ))}
          {ruling.remedy && (
            <>
              <dt>What would pass</dt>
              <dd>{sentence(ruling.remedy)}</dd>
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
