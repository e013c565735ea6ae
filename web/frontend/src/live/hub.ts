/** One stream for all tabs of a browser: HTTP/1.1 allows six connections a host, and each tab would hold one. */
import type { Follow, Following, Scope, StreamHandlers, StreamState } from "./stream";

/** A stream that nobody follows any more is kept for so many milliseconds: the next page of the tab joins it. */
const LINGER = 1_000;
/** Messages that a tab may leave untaken, as a frozen one does, before it has to load everything again. */
export const MOST_UNTAKEN = 100;

export interface Tab {
  /** The tab has taken a message of entries. */
  taken(): void;
  leave(): void;
}

interface Member extends StreamHandlers {
  scope: Scope;
  /** It has not been told since when its stream is complete. */
  isNew: boolean;
  untaken: number;
  isBehind: boolean;
}

interface Opened {
  following: Following;
  scope: Scope;
  state: StreamState;
  /** A tab that was there before it lacks nothing: it goes on where another ended, or has told all to load again. */
  isWhole: boolean;
}

/** Follows what all tabs want together, and passes on to each what it asked for. */
export class Hub {
  private readonly members = new Set<Member>();
  private stream: Opened | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly follow: Follow,
    private readonly headers: () => Record<string, string>,
  ) {}

  join(scope: Scope, handlers: StreamHandlers): Tab {
    const member: Member = { ...handlers, scope, isNew: true, untaken: 0, isBehind: false };
    this.members.add(member);
    clearTimeout(this.timer);
    if (this.stream?.state !== "live" || !covers(this.stream.scope, scope)) this.open(this.wanted()); // at once, with what a new login brought
    else {
      member.state("live");
      this.begin(member);
    }
    return {
      taken: () => {
        member.untaken -= 1;
        if (member.isBehind && member.untaken === 0) {
          member.isBehind = false;
          member.reset();
        }
      },
      leave: () => {
        this.members.delete(member);
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.narrow(), LINGER);
      },
    };
  }

  /** One session when all tabs want the same one, else everything. */
  private wanted(): Scope {
    const [first, ...others] = [...this.members].map((member) => member.scope.session_id);
    return first !== undefined && others.every((one) => one === first) ? { session_id: first } : {};
  }

  private narrow(): void {
    if (this.members.size === 0) {
      this.stream?.following.end();
      this.stream = null;
    } else if (this.stream && this.stream.scope.session_id !== this.wanted().session_id) this.open(this.wanted());
  }

  /** Go on where the stream before it ended: ids are positions of the log, whatever is followed. */
  private open(scope: Scope): void {
    const since = this.stream?.following.end() ?? null;
    const opened: Omit<Opened, "following"> = { scope, state: "waiting", isWhole: since !== null };
    this.stream = Object.assign(opened, { following: this.follow(scope, this.handlers(opened), this.headers, since) });
  }

  private handlers(opened: Omit<Opened, "following">): StreamHandlers {
    return {
      state: (state) => {
        opened.state = state;
        for (const member of this.members) {
          member.state(state);
          if (state === "live" && opened.isWhole && member.isNew) this.begin(member);
        }
      },
      reset: () => {
        opened.isWhole = true;
        for (const member of this.members) this.begin(member);
      },
      entries: (items) => {
        for (const member of this.members) this.pass(member, items);
      },
    };
  }

  /** From here on the stream has everything: what came before is in the answers of the other routes. */
  private begin(member: Member): void {
    member.isNew = false;
    member.reset();
  }

  private pass(member: Member, items: Parameters<StreamHandlers["entries"]>[0]): void {
    const { session_id } = member.scope;
    const wanted = session_id === undefined ? items : items.filter((item) => item.session_id === session_id);
    if (wanted.length === 0 || member.isBehind) return;
    if (member.untaken >= MOST_UNTAKEN) member.isBehind = true;
    else {
      member.untaken += 1;
      member.entries(wanted);
    }
  }
}

function covers(scope: Scope, wanted: Scope): boolean {
  return scope.session_id === undefined || scope.session_id === wanted.session_id;
}
