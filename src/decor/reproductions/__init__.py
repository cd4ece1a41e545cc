"""The paper's experiments and further ones: programs on the public API, one study per file."""
