"""One run on several processes: ranks, communication, and which users each process holds."""
