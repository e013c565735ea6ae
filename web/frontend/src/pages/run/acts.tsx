/** Pause, resume and stop, with a question before a stop. */
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { AlertDialog } from "radix-ui";
import { api, data, type Schemas } from "../../api/client";
import { plain } from "../../lib/format";

type Act = "pause" | "resume" | "stop";

export function SessionActs({ detail }: { detail: Schemas["SessionDetail"] }) {
  const client = useQueryClient();
  const act = useMutation({
    mutationFn: (name: Act) =>
      data(api.POST("/api/v1/sessions/{session_id}/{act}", { params: { path: { session_id: detail.session_id, act: name } }, body: { reason: null } })),
    onSettled: () => void client.invalidateQueries({ queryKey: ["session", detail.session_id] }),
  });
  return (
    <>
      <button className="button" disabled={act.isPending} onClick={() => act.mutate(detail.is_paused ? "resume" : "pause")}>
        {detail.is_paused ? "Resume" : "Pause"}
      </button>
      <AlertDialog.Root>
        <AlertDialog.Trigger className="button danger" disabled={act.isPending}>
          Stop
        </AlertDialog.Trigger>
        <AlertDialog.Portal>
          <AlertDialog.Overlay className="overlay" />
          <AlertDialog.Content className="dialog">
            <AlertDialog.Title asChild>
              <h2>Stop this session?</h2>
            </AlertDialog.Title>
            <AlertDialog.Description className="soft">
              The session halts, and open deliveries end. It cannot be resumed. The log keeps everything.
            </AlertDialog.Description>
            <div className="acts">
              <AlertDialog.Cancel className="button">Keep it running</AlertDialog.Cancel>
              <AlertDialog.Action className="button danger" onClick={() => act.mutate("stop")}>
                Stop the session
              </AlertDialog.Action>
            </div>
          </AlertDialog.Content>
        </AlertDialog.Portal>
      </AlertDialog.Root>
      <span role="status" className={act.error ? "badge bad" : "soft"}>
        {act.error ? act.error.message : act.data && `${plain(act.data.verdict)} as ${String(act.data.detail.by)}`}
      </span>
    </>
  );
}
