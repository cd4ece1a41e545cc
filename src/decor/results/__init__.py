"""Results of plans and runs: run folders, figures, tables and reports."""
