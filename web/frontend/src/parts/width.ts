import { useLayoutEffect, useState, type RefObject } from "react";

/** The width of an element in pixels, kept up to date. */
export function useWidth(element: RefObject<HTMLElement | null>): number {
  const [width, change] = useState(0);
  useLayoutEffect(() => {
    const target = element.current!;
    change(target.clientWidth);
    const observer = new ResizeObserver(() => change(target.clientWidth));
    observer.observe(target);
    return () => observer.disconnect();
  }, [element]);
  return width;
}
