"""Audit: measured proof that what users send is as private as the plan says."""
