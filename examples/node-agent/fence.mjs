/** Which deliveries to drop: those that were handled already, and those of a gate that had lost its shard. */

const REMEMBERED = 50_000;
const EPOCHS = 16;

/** (packet_id, attempt) of what was handled; the oldest are forgotten. */
export class Handled {
  #keys = new Set();

  has(packetId, attempt) {
    return this.#keys.has(`${packetId}/${attempt}`);
  }

  add(packetId, attempt) {
    this.#keys.add(`${packetId}/${attempt}`);
    if (this.#keys.size > REMEMBERED) this.#keys.delete(this.#keys.values().next().value);
  }
}

/** The marks of every shard: [epoch, batch] of the last batch committed before an epoch. */
export class Marks {
  #shards = new Map();

  /** Whether a batch that was never committed holds this delivery. */
  isFenced({ shard, epoch, batch, mark }) {
    const marks = this.#shards.get(shard) ?? new Map();
    this.#shards.set(shard, marks);
    if (!marks.has(epoch)) marks.set(epoch, mark);
    if (marks.size > EPOCHS) marks.delete(Math.min(...marks.keys()));
    return [...marks].some(([newer, known]) => newer > epoch && isBeyond([epoch, batch], known));
  }
}

function isBeyond([epoch, batch], [markEpoch, markBatch]) {
  return epoch > markEpoch || (epoch === markEpoch && batch > markBatch);
}
