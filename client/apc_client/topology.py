"""The topology of this deployment."""

from collections.abc import Sequence

from apc_bus.settings import DeploymentSettings
from apc_bus.topology import AgentQueues, Topology, build_topology
from apc_contracts.contract.contract import load_contract


def topology_of(settings: DeploymentSettings, agents: Sequence[AgentQueues] = ()) -> Topology:
    """Return the topology for these shards and agents; the contract limits the size of an inbox.

    Raises:
        ContractInvalid: the contract file of the settings cannot be used.
        TopologyInvalid: as `build_topology`.
    """
    bound = load_contract(settings.contract).limits.outstanding_deliveries
    return build_topology(settings.shards, agents, bound=bound)
