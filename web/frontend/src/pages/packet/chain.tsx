/** Up and down the causal chain. */
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import type { Schemas } from "../../api/client";
import { tree } from "../../api/queries";
import { Card, Foreign, PacketLink, TypeMark, Verdict } from "../../parts/bits";
import { ContentLine, type BodyState } from "../../parts/content";
import { Loaded } from "../../parts/states";
import { plural } from "../../lib/format";

type Detail = Schemas["PacketDetail"];

function Line({ link, session, depth = 0 }: { link: { packet_id: string; packet_type: string; sender: string; verdict: string; edge: string | null; line: string; body: BodyState }; session: string; depth?: number }) {
  return (
    <li style={{ paddingLeft: 8 + Math.min(depth, 8) * 18 }}>
      <TypeMark type={link.packet_type} isHollow={link.verdict !== "accepted"} />
      <PacketLink id={link.packet_id} session={session}>
        <span className="mono">{link.packet_type}</span>
      </PacketLink>
      <span className="soft from">
        <Foreign>{link.sender}</Foreign>
        {link.edge && <span className="quiet"> · {link.edge === "cause" ? "caused by handling" : "answers"}</span>}
      </span>
      <Verdict verdict={link.verdict} isQuiet />
      <span className="says">
        <ContentLine line={link.line} body={link.body} />
      </span>
    </li>
  );
}

export function Chain({ detail }: { detail: Detail }) {
  const answer = useQuery(tree(detail.packet_id, detail.session_id));
  const below = useMemo(() => ordered(answer.data?.items ?? []), [answer.data]);
  return (
    <Card title="Causal chain">
      <h3>What it came from</h3>
      {detail.causes.length === 0 ? (
        <p className="soft">Nothing: this packet begins a chain.</p>
      ) : (
        <ul className="chain">
          {detail.causes.map((link) => (
            <Line key={`${link.seq} ${link.edge}`} link={link} session={detail.session_id} />
          ))}
        </ul>
      )}
      <h3 style={{ marginTop: 14 }}>What followed from it</h3>
      <Loaded answer={answer} what="what followed" lines={3}>
        {(found) =>
          below.length === 0 ? (
            <p className="soft">Nothing so far.</p>
          ) : (
            <>
              <ul className="chain" style={{ maxHeight: 420, overflowY: "auto" }} tabIndex={0} aria-label="What followed">
                {below.map((node) => (
                  <Line key={node.seq} link={{ ...node, edge: null }} session={detail.session_id} depth={node.depth - 1} />
                ))}
              </ul>
              <p className="quiet" style={{ marginTop: 6 }}>
                {plural(below.length, "packet")}{found.is_cut && ", and more"}
              </p>
            </>
          )
        }
      </Loaded>
    </Card>
  );
}

type Node = Schemas["TreeNode"];

/** Without the root, every packet right after the one that it stands under. */
export function ordered(items: readonly Node[]): Node[] {
  const under = new Map<string | null, Node[]>();
  for (const item of items) {
    const above = item.above ?? null;
    under.set(above, [...(under.get(above) ?? []), item]);
  }
  const found: Node[] = [];
  const waiting = [...(under.get(items[0]?.packet_id ?? null) ?? [])].reverse();
  while (waiting.length > 0) {
    const node = waiting.pop()!;
    found.push(node);
    waiting.push(...[...(under.get(node.packet_id) ?? [])].reverse());
  }
  return found;
}
