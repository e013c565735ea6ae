/** Dialogs that say what an act will do before it is done: dead letters in bulk, and an effect whose outcome is unknown. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Dialog } from "radix-ui";
import { useState, type ReactNode } from "react";
import { api, data, type Schemas } from "../../api/client";
import { Ago, Badge, Foreign, PacketLink } from "../../parts/bits";
import { plural } from "../../lib/format";
import { Countdown } from "./approvals";

export type Member = Schemas["DeadMember"];
type Effect = Schemas["EffectSummary"];
export type LetterAct = "requeue" | "discard";

const MOST_SHOWN = 100;
const DONE: Record<LetterAct, string> = { requeue: "Delivered again", discard: "Discarded" };

function Framed({ title, about, close, children }: { title: string; about: string; close: () => void; children: ReactNode }) {
  return (
    <Dialog.Root open onOpenChange={(isOpen) => !isOpen && close()}>
      <Dialog.Portal>
        <Dialog.Overlay className="overlay" />
        <Dialog.Content className="dialog wide">
          <Dialog.Title asChild><h2>{title}</h2></Dialog.Title>
          <Dialog.Description className="soft">{about}</Dialog.Description>
          {children}
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

interface Verdict {
  packet_id: string;
  recipient: string;
  verdict: string;
}

function Preview({ act, members }: { act: LetterAct; members: readonly Member[] }) {
  return (
    <ul className="preview" aria-label="What will happen" tabIndex={0}>
      {members.slice(0, MOST_SHOWN).map((one) => (
        <li key={`${one.session_id} ${one.packet_id} ${one.recipient}`}>
          <PacketLink id={one.packet_id} session={one.session_id} />
          <Foreign>{one.recipient}</Foreign>
          <span className="quiet"><Ago at={one.died_at} /></span>
          {act === "discard" ? <Badge>filed, never delivered</Badge> : one.can_requeue ? <Countdown at={one.expires_at} over="expired: stays" /> : <Badge tone="warn">stays: expired or halted</Badge>}
        </li>
      ))}
      {members.length > MOST_SHOWN && <li className="quiet">… and {members.length - MOST_SHOWN} more</li>}
    </ul>
  );
}

/** Deliver again, or discard: what is named here is what will be acted on, in the attempt that is named. */
export function LetterDialog({ act, members, close }: { act: LetterAct; members: readonly Member[]; close: () => void }) {
  const client = useQueryClient();
  const [note, write] = useState("");
  const usable = act === "discard" ? members : members.filter((one) => one.can_requeue);
  const doing = useMutation({
    mutationFn: () =>
      data(
        api.POST("/api/v1/dead/{act}", {
          params: { path: { act } },
          body: { deliveries: usable.map(({ packet_id, session_id, recipient, attempt }) => ({ packet_id, session_id, recipient, attempt })), note: note.trim() || null },
        }),
      ),
    onSettled: () => void client.invalidateQueries({ queryKey: ["dead"] }),
  });
  const verdicts = (doing.data?.detail.deliveries ?? []) as Verdict[];
  const left = verdicts.filter((one) => one.verdict.startsWith("left"));
  const what = plural(usable.length, "dead letter");
  const stays = members.length - usable.length;
  const about = act === "discard" ? `${what} will be filed, and never be delivered again.` : `${what} will be delivered again, as the next attempt${stays > 0 ? `; ${stays} cannot be any more` : ""}.`;
  if (doing.data) {
    return (
      <Framed title={DONE[act]} about={`${plural(verdicts.length - left.length, "dead letter")} ${act === "discard" ? "discarded" : "delivered again"} as ${String(doing.data.detail.by)}${left.length ? `; ${left.length} left as they were` : ""}.`} close={close}>
        {left.length > 0 && <ul className="preview" tabIndex={0} aria-label="Left as they were">{left.map((one) => <li key={`${one.packet_id} ${one.recipient}`}><Foreign>{one.verdict}</Foreign></li>)}</ul>}
        <div className="acts"><button type="button" className="button primary" onClick={close}>Close</button></div>
      </Framed>
    );
  }
  return (
    <Framed title={act === "discard" ? `Discard ${what}?` : `Deliver ${what} again?`} about={about} close={close}>
      <Preview act={act} members={members} />
      <input className="field" aria-label="Reason" placeholder={act === "discard" ? "Reason, kept in the log (needed)" : "Reason, kept in the log (optional)"} value={note} onChange={(event) => write(event.target.value)} maxLength={300} />
      {doing.error && <p role="alert" className="notice bad">{doing.error.message}</p>}
      <div className="acts">
        <button type="button" className="button" onClick={close}>Cancel</button>
        <button type="button" className={act === "discard" ? "button danger" : "button primary"} disabled={doing.isPending || usable.length === 0 || (act === "discard" && note.trim() === "")} onClick={() => doing.mutate()}>
          {act === "discard" ? `Discard ${usable.length}` : `Deliver ${usable.length} again`}
        </button>
      </div>
    </Framed>
  );
}

/** The JSON of a text, or why it is none. */
export function jsonOf(text: string): { value?: unknown; fault?: string } {
  if (text.trim() === "") return { value: null };
  try {
    return { value: JSON.parse(text) as unknown };
  } catch {
    return { fault: "This is no JSON: a text wants quotes, \"A-2\"" };
  }
}

/** What became of an effect: it was made, with a result, or it was not. */
export function EffectDialog({ effect, close }: { effect: Effect; close: () => void }) {
  const client = useQueryClient();
  const isLost = effect.state === "RESULT_LOST";
  const [isMade, choose] = useState<boolean | null>(isLost ? true : null);
  const [text, write] = useState("");
  const { value, fault } = jsonOf(text);
  const doing = useMutation({
    mutationFn: () =>
      data(
        api.POST("/api/v1/effects/settle", {
          body: { packet_id: effect.packet_id, agent_id: effect.agent_id, key: effect.key, is_made: isMade === true, result: (isMade ? value : null) as never },
        }),
      ),
    onSettled: () => void client.invalidateQueries({ queryKey: ["effects"] }),
  });
  if (doing.data) {
    const { by, is_logged } = doing.data.detail;
    return (
      <Framed title="Settled" about={`Settled as ${String(by)}; ${is_logged ? "it is in the log" : "the log does not show it yet"}.`} close={close}>
        <p className="soft">If its packet is a dead letter, deliver it again: the handler {isMade ? "gets this result and makes nothing" : "makes the effect now"}.</p>
        <div className="acts"><button type="button" className="button primary" onClick={close}>Close</button></div>
      </Framed>
    );
  }
  return (
    <Framed title={`What became of “${effect.key}”?`} about={`${effect.agent_id} began it, and nobody knows how that ended. Find out at the other side first.`} close={close}>
      <fieldset className="choices">
        <legend className="sr">What became of it</legend>
        <label><input type="radio" name="made" checked={isMade === true} onChange={() => choose(true)} /> It has happened</label>
        {!isLost && <label><input type="radio" name="made" checked={isMade === false} onChange={() => choose(false)} /> It has not happened: the next attempt makes it</label>}
      </fieldset>
      {isMade === true && (
        <label className="stack" style={{ gap: 4 }}>
          <span className="quiet">Its result as JSON, which the handler gets; empty is null</span>
          <textarea className="field" rows={3} aria-label="Result" aria-invalid={fault !== undefined} value={text} onChange={(event) => write(event.target.value)} />
          {fault && <span role="alert" className="notice bad">{fault}</span>}
        </label>
      )}
      {doing.error && <p role="alert" className="notice bad">{doing.error.message}</p>}
      <div className="acts">
        <button type="button" className="button" onClick={close}>Cancel</button>
        <button type="button" className="button primary" disabled={doing.isPending || isMade === null || (isMade && fault !== undefined)} onClick={() => doing.mutate()}>Settle</button>
      </div>
    </Framed>
  );
}
