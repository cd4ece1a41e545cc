"""What an answer or a run leaves behind for people to look at."""
