/** The part of a picture that is seen, moved by hand: a drag moves it, Ctrl (or ⌘) and scroll zoom it. */
import { useCallback, useEffect, useMemo, useRef, useState, type PointerEvent, type RefObject } from "react";
import { placeAt, type Window } from "../../lib/overview";

/** The smallest part of the whole that is shown. */
const LEAST = 1 / 2_000;
const ZOOM = 1.25;
/** Pixels after which a press is a drag and no click. */
const DRAG = 4;

interface Part {
  from: number;
  to: number;
}

const WHOLE: Part = { from: 0, to: 1 };

/** Keep a part inside the whole, as wide as it was if it fits. */
function within({ from, to }: Part): Part {
  const size = Math.min(1, Math.max(LEAST, to - from));
  const begin = Math.max(0, Math.min(1 - size, from));
  return { from: begin, to: begin + size };
}

/** Zoom by a factor, so that `place` stays where it is. */
export function zoomed({ from, to }: Part, factor: number, place: number): Part {
  const size = Math.min(1, Math.max(LEAST, (to - from) * factor));
  const share = (place - from) / (to - from);
  return within({ from: place - share * size, to: place + (1 - share) * size });
}

export function useWindow(box: RefObject<HTMLElement | null>, width: number, height: number, of: string) {
  const [held, change] = useState({ of, part: WHOLE });
  const part = held.of === of ? held.part : WHOLE;
  const window = useMemo((): Window => ({ ...part, width, height }), [part, width, height]);
  const latest = useRef(window);
  useEffect(() => {
    latest.current = window;
  });
  const set = useCallback((next: Part) => change({ of, part: next }), [of]);
  const zoom = useCallback((factor: number, place: number) => set(zoomed(latest.current, factor, place)), [set]);
  const show = useCallback(
    (place: number) => {
      const half = (latest.current.to - latest.current.from) / 2;
      set(within({ from: place - half, to: place + half }));
    },
    [set],
  );

  useEffect(() => {
    const element = box.current!;
    let frame = 0;
    let factor = 1;
    const onWheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      factor *= event.deltaY > 0 ? ZOOM : 1 / ZOOM;
      const x = event.clientX - element.getBoundingClientRect().left;
      frame ||= requestAnimationFrame(() => {
        zoom(factor, placeAt(latest.current, x));
        [frame, factor] = [0, 1];
      });
    };
    element.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      cancelAnimationFrame(frame);
      element.removeEventListener("wheel", onWheel);
    };
  }, [box, zoom]);

  const drag = useRef<{ x: number; window: Window; hasMoved: boolean; frame: number } | null>(null);
  const hands = {
    down(event: PointerEvent): void {
      box.current!.setPointerCapture(event.pointerId);
      drag.current = { x: event.clientX, window, hasMoved: false, frame: 0 };
    },
    /** Return true while the window is dragged. */
    move(event: PointerEvent): boolean {
      const held = drag.current;
      if (!held) return false;
      const by = event.clientX - held.x;
      held.hasMoved ||= Math.abs(by) > DRAG;
      if (!held.hasMoved) return true;
      cancelAnimationFrame(held.frame);
      held.frame = requestAnimationFrame(() => {
        const moved = placeAt(held.window, 0) - placeAt(held.window, by);
        set(within({ from: held.window.from + moved, to: held.window.to + moved }));
      });
      return true;
    },
    /** Return true when it was a drag, and no click. */
    up(_event: PointerEvent): boolean {
      const hasMoved = drag.current?.hasMoved ?? false;
      drag.current = null;
      return hasMoved;
    },
  };
  return { window, isZoomed: part.to - part.from < 1, zoom, show, showAll: useCallback(() => set(WHOLE), [set]), hands };
}
