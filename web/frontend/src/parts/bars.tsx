/** Numbers over time as bars: what is bad of each stands at its foot. */
import { count, dateTime } from "../lib/format";
import { Time } from "./bits";

export interface Bar {
  at: number;
  value: number;
  bad: number;
}

const HEIGHT = 64;

export function Bars({ bars, from, until, step, what, badWhat, isBare = false, say = count }: { bars: readonly Bar[]; from: number; until: number; step: number; what: string; badWhat: string; isBare?: boolean; say?: (value: number) => string }) {
  const places = Math.max(1, Math.ceil((until - from) / step));
  const most = Math.max(...bars.map((bar) => bar.value)) || 1;
  const total = bars.reduce((sum, bar) => sum + bar.value, 0);
  const bad = bars.reduce((sum, bar) => sum + bar.bad, 0);
  const height = (value: number) => (value === 0 ? 0 : Math.max(1.5, (value / most) * (HEIGHT - 4)));
  return (
    <figure>
      <svg viewBox={`0 0 ${places * 8} ${HEIGHT}`} className="chart bars-over-time" preserveAspectRatio="none" role="img" aria-label={`${say(total)} ${what}, ${count(bad)} ${badWhat}; at most ${say(most)} ${what} at once`}>
        <rect x={0} y={HEIGHT - 1} width={places * 8} height={1} fill="var(--line)" />
        {bars.map((bar) => (
          <g key={bar.at}>
            <title>{`${dateTime(bar.at)}: ${say(bar.value)} ${what}, ${count(bar.bad)} ${badWhat}`}</title>
            <rect x={Math.floor((bar.at - from) / step) * 8 + 1} width={6} y={HEIGHT - 1 - height(bar.value)} height={height(bar.value)} fill="var(--accent)" />
            <rect x={Math.floor((bar.at - from) / step) * 8 + 1} width={6} y={HEIGHT - 1 - height(bar.bad)} height={height(bar.bad)} fill="var(--bad)" />
          </g>
        ))}
      </svg>
      {!isBare && (
        <figcaption className="axis">
          <Time at={from} />
          <Time at={until} />
        </figcaption>
      )}
    </figure>
  );
}
