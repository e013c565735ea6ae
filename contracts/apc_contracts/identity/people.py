"""Who speaks for a person: never an agent, which could answer its own questions in the person's name."""

from collections.abc import Collection, Iterable

from apc_contracts.identity.registry import Kind, Registration


def voice_objection(added: Registration, known: Iterable[Registration], trusted: Collection[str] = ()) -> str | None:
    """Return why a registration would let an agent speak for a person; None when it would not.

    Broker users in `trusted` may do so: the gate's own and the operator's may register whomever they like.
    """
    for other in known:
        if other.is_revoked or other.agent_id == added.agent_id or other.kind is added.kind:
            continue
        person, agent = (added, other) if added.kind is Kind.PERSON else (other, added)
        if person.speaks_as(agent.broker_user) and agent.broker_user not in trusted:
            return (
                f"the broker user {agent.broker_user} is that of agent {agent.agent_id}, which could answer its own "
                f"questions as {person.agent_id}: name another user with --via, or give the agent its own"
            )
    return None
