/** Requests for single things, joined into one: rows of a table ask for what they show when they come into view. */

/** Ask for at most `most` keys at once, a moment after the first; a key that the answer lacks is null. */
export function batched<Key, Answer>(ask: (keys: Key[]) => Promise<Map<Key, Answer>>, most: number, wait = 20): (key: Key) => Promise<Answer | null> {
  let waiting = new Map<Key, Promise<Answer | null>>();
  let all: Promise<Map<Key, Answer>> | null = null;
  return (key) => {
    const known = all && waiting.get(key);
    if (known) return known;
    if (all === null || waiting.size >= most) {
      const mine = (waiting = new Map());
      all = new Promise<void>((done) => setTimeout(done, wait)).then(() => {
        if (waiting === mine) all = null;
        return ask([...mine.keys()]);
      });
    }
    const found = all.then((answers) => answers.get(key) ?? null);
    waiting.set(key, found);
    return found;
  };
}
