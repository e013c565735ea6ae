/** Where the reader of a list that grows is. */

/** Pixels from the end within which a reader is still at it: two rows of a table. */
export const NEAR_END = 68;

/** Whether a reader is at the end after a scroll; `wasAtEnd` and `top` (its `scrollTop`) say where they were before it. The list grows between our own scroll and its event, so that only a move up leaves the end. */
export function staysAtEnd(wasAtEnd: boolean, top: number, box: Pick<Element, "scrollHeight" | "scrollTop" | "clientHeight">): boolean {
  if (box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END) return true;
  return wasAtEnd && box.scrollTop >= top;
}
