"""Message sources of the simulator."""

import torch
from small_audits import FEW, failures, plan, reached

import decor


def test_one_process_of_a_group_is_attacked():
    audit = decor.audit(plan(), engine=decor.ProcessGroup(), canaries=FEW, steps=6)
    assert audit.passed and [wire.name for wire in audit.wires] == ["process-group"]
    assert all(share > 0.8 for share in reached(audit).values())


def test_a_simulation_claims_nothing_about_its_last_bits():
    audit = decor.audit(plan(), canaries=3_000, steps=4)
    assert audit.passed and all(
        text.startswith("not claimed: a simulation")
        for text in audit.to_json()["last_bits"].values()
    )
    assert not {"support", "low bits", "entropy"} & {
        check.name for wire in audit.wires for check in wire.checks
    }


def test_one_message_too_many_is_detected(monkeypatch):
    run = decor.Vectorised.run

    def once_more(self, task, settings, recipe, *rest):
        runs = run(self, task, settings, recipe, *rest)
        if self.on_messages is not None:
            self.on_messages(
                settings[0].plan.exposure.steps,
                torch.zeros(task.users, len(settings), 1, task.parameters),
            )
        return runs

    monkeypatch.setattr(decor.Vectorised, "run", once_more)
    audit = decor.audit(plan(), canaries=FEW, steps=8)
    assert "each user sent 9 messages in 8 steps" in failures(audit)
