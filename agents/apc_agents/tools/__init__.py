"""The tools of an agent: typed functions, their calls, and what they return."""
