"""Bytes and peers: messages, sessions, identities and the ledger. Knows no models."""
