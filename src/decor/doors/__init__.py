"""DECOR inside other packages: accountants behind their interfaces.

Each module is named after the package that it connects, and imports it; nothing else of DECOR
imports them.
"""
