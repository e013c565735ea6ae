/** The blast radius of a packet: what would rest on nothing if it were retracted. */
import { useQuery } from "@tanstack/react-query";
import type { Schemas } from "../../api/client";
import { impact } from "../../api/queries";
import { Badge, Card, Foreign, PacketLink, TypeMark } from "../../parts/bits";
import { ContentLine } from "../../parts/content";
import { Loaded } from "../../parts/states";
import { count, plural } from "../../lib/format";

export function ImpactCard({ detail }: { detail: Schemas["PacketDetail"] }) {
  const answer = useQuery(impact(detail.packet_id, detail.session_id));
  return (
    <Card title="What rests on it">
      <Loaded answer={answer} what="what rests on it" lines={2}>
        {(found) =>
          found.total === 0 ? (
            <p className="soft">No other packet rests on this one.</p>
          ) : (
            <>
              <p className="soft">{plural(found.total, "packet rests", "packets rest")} on this one: stale when it is retracted.</p>
              <ul className="chain" style={{ maxHeight: 260, overflowY: "auto", marginTop: 6 }} tabIndex={0} aria-label="What rests on it">
                {found.items.map((one) => (
                  <li key={one.seq}>
                    <TypeMark type={one.packet_type} />
                    <PacketLink id={one.packet_id} session={detail.session_id}>
                      <span className="mono">{one.packet_type}</span>
                    </PacketLink>
                    <span className="soft from">
                      <Foreign>{one.sender}</Foreign>
                    </span>
                    {one.is_retracted ? <Badge tone="bad">retracted</Badge> : one.is_stale ? <Badge tone="warn">stale</Badge> : <span />}
                    <span className="says">
                      <ContentLine line={one.line} body={one.body} />
                    </span>
                  </li>
                ))}
              </ul>
              {found.total > found.items.length && <p className="quiet">The first {count(found.items.length)} are shown.</p>}
            </>
          )
        }
      </Loaded>
    </Card>
  );
}
