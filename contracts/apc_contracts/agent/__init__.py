"""What an agent is given and what it answers: its context, its response, its walk through its own coordination."""
