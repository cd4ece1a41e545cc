"""Plans for audits of a second or two, and what is read from their outcome."""

import decor

FEW = 15_000
EXAMPLES = {"unit": "example", "batch_size": 10, "records": 400}


def plan(graph=None, adversary=None, steps=200, **exposure):
    return decor.calibrate(
        graph or decor.ring(6),
        decor.Exposure(clip=0.7, steps=steps, **exposure),
        adversary or decor.Adversary.curious(),
        decor.Budget(3.0, 1e-5),
    )


def reached(audit):
    """(source, adversary) -> the share of the claim that was measured."""
    return {(row.wire, row.adversary): row.best.reached for row in audit.rows}


def failures(audit):
    """All sentences about what failed; something must have."""
    assert not audit.passed
    return " ".join(audit.failures)


def failed_checks(audit):
    """Names of the checks that failed; something must have."""
    assert not audit.passed
    return {check.name for wire in audit.wires for check in wire.checks if not check.passed}
