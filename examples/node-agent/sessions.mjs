/** Where each session stands, learnt from the headers of deliveries and from SYNC; the highest step wins. */

const UNKNOWN = { run_phase: "RESEARCH", generation: 0, step: 0 };

export class Sessions {
  #moments = new Map();

  /** The newest known {run_phase, generation, step} of a session. */
  of(sessionId) {
    return this.#moments.get(sessionId) ?? UNKNOWN;
  }

  learn(packet, headers) {
    const sessionId = packet.trace.session_id;
    if (headers["apc-state-step"] !== undefined) {
      this.#keep(sessionId, {
        run_phase: headers["apc-phase"],
        generation: headers["apc-generation"],
        step: headers["apc-state-step"],
      });
    }
    const { signal, session } = packet.payload;
    if (packet.packet_type === "SIGNAL" && signal === "SYNC" && packet.sender.agent_id === "orchestrator" && session) {
      this.#keep(sessionId, session);
    }
  }

  #keep(sessionId, { run_phase, generation, step }) {
    const known = this.#moments.get(sessionId);
    if (known === undefined || step >= known.step) this.#moments.set(sessionId, { run_phase, generation, step });
  }
}
