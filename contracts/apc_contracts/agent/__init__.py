"""What an agent receives and answers: its context, its response, its path through local coordination."""
