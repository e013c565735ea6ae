/** The agent's own work: it answers an IDEA with a CLAIM about its open risks. */

export const handlers = {
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
