/** What waits for a person: approvals, dead letters, effects to settle, failed tasks. */
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useNavigate, useSearch } from "@tanstack/react-router";
import { Tabs } from "radix-ui";
import { approvals, dead, tasks, useUnknownEffects } from "../../api/queries";
import { Card, usePageTitle } from "../../parts/bits";
import { useStream } from "../../state/live";
import { Approvals } from "./approvals";
import { DeadLetters } from "./dead-letters";
import { Effects, Tasks } from "./work";

function Trigger({ value, name, number }: { value: string; name: string; number: number }) {
  return (
    <Tabs.Trigger value={value}>
      {name}
      {number > 0 && <span className="tally num">{number}</span>}
    </Tabs.Trigger>
  );
}

export function InboxPage() {
  usePageTitle("Inbox");
  const { view } = useSearch({ from: "/inbox" });
  const navigate = useNavigate();
  const numbers = {
    approvals: useQuery(approvals).data?.items.length ?? 0,
    dead: useInfiniteQuery(dead).data?.pages.flatMap((one) => one.items).length ?? 0,
    effects: useUnknownEffects(),
    tasks: useQuery(tasks("FAILED")).data?.items.length ?? 0,
  };
  useStream({}, ["approvals", "dead", "effects", "tasks"]);
  return (
    <div className="stack">
      <div className="title">
        <div>
          <h1>Inbox</h1>
          <p className="under">What waits for a person.</p>
        </div>
      </div>
      <Card flush>
        <Tabs.Root value={view ?? "approvals"} onValueChange={(next) => void navigate({ to: "/inbox", search: { view: next === "approvals" ? undefined : next }, replace: true })}>
          <Tabs.List className="tabs" aria-label="Kinds">
            <Trigger value="approvals" name="Approvals" number={numbers.approvals} />
            <Trigger value="dead" name="Dead letters" number={numbers.dead} />
            <Trigger value="effects" name="Effects" number={numbers.effects} />
            <Trigger value="tasks" name="Failed tasks" number={numbers.tasks} />
          </Tabs.List>
          <Tabs.Content value="approvals" tabIndex={-1}>
            <Approvals />
          </Tabs.Content>
          <Tabs.Content value="dead" tabIndex={-1}>
            <DeadLetters />
          </Tabs.Content>
          <Tabs.Content value="effects" tabIndex={-1}>
            <Effects />
          </Tabs.Content>
          <Tabs.Content value="tasks" tabIndex={-1}>
            <Tasks />
          </Tabs.Content>
        </Tabs.Root>
      </Card>
    </div>
  );
}
