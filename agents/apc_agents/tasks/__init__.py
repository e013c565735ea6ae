"""Durable tasks: ASYNC actions, kept in a store, run by the workers of their agent."""

from apc_agents.tasks.in_memory import MemoryTaskStore
from apc_agents.tasks.postgres import PostgresTaskStore
from apc_agents.tasks.runner import TaskRunner
from apc_agents.tasks.store import ENDED, NewTask, Task, TaskEvent, TaskOrigin, TaskSpec, TaskStatus, TaskStore

__all__ = [
    "ENDED",
    "MemoryTaskStore",
    "NewTask",
    "PostgresTaskStore",
    "Task",
    "TaskEvent",
    "TaskOrigin",
    "TaskRunner",
    "TaskSpec",
    "TaskStatus",
    "TaskStore",
]
