"""Settings of agents: model, memory, language, tasks and signing."""
