"""Audit: measures whether the messages of users are as private as the plan claims."""
