/** The agent's own work: it answers an IDEA with a CLAIM about its open risks, and a change/1 with a review/1. */

const LONGEST_LINE = 120;

export const handlers = {
  /** Content that fits its schema: the gate has checked it, and checks the answer's. */
  async MESSAGE(message, emit) {
    const { schema, content } = message.payload;
    if (schema !== "change/1") return;
    const long = content.lines.flatMap((line, index) => (line.length > LONGEST_LINE ? [index + 1] : []));
    const remarks = long.map((line) => ({ line, text: `more than ${LONGEST_LINE} characters` }));
    emit({ type: "MESSAGE", payload: { schema: "review/1", content: { file: content.file, remarks } } });
  },

  async IDEA(idea, emit) {
    const { method_id, failure_modes } = idea.payload;
    const risks = failure_modes.map((mode) => mode.id);
    emit({
      type: "CLAIM",
      confidence: idea.confidence,
      payload: {
        claim_id: `${method_id}-holds`,
        hypothesis_id: method_id,
        text: `The author names ${risks.length} ways to fail: ${risks.join(", ") || "none"}.`,
        confidence_pre: idea.confidence,
        confidence_post: idea.confidence / (1 + risks.length),
      },
      proof_bundle: { evidence_refs: [`packet:${idea.packet_id}`], falsifiers: [], signatures: [] },
    });
  },
};
