"""DECOR inside other packages: accountants behind their interfaces, launchers in their runtimes.

A module that is named after a package connects it, and imports it; nothing else of DECOR imports
them. `site_node` and `lease` are what launchers have in common, and need no other package.
"""
