"""A federation of real users: its file, one user's node, and all users on one machine."""
