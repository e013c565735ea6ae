"""A2A 1.0 in front of one team: each answer is read from the log, so that any door can give it, also a restarted one.

A task is a session, a context is a run, a message is the team's input, and INPUT_REQUIRED is an open question to the
caller. Here are the models of teams that take A2A messages as they are; the door itself needs the extra `a2a`.
"""

from apc_a2a.messages import A2AArtifact, A2AMessage, A2AReply

__all__ = ["A2AArtifact", "A2AMessage", "A2AReply"]
