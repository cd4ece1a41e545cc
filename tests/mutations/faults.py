"""Faults put into a copy of the source on purpose, what each would cost, and what has to notice it.

Most have happened in this field, some in the paper's own code; the others are one slip
away. `run.py` puts them in one after the other and sees who notices.
"""

from dataclasses import dataclass

SEVERAL = "tests/mutations/pendant.edges"
AUDITS = {
    "small": "--users 8 --adversary curious --canaries 9000 --audit-steps 6",
    "wide": "--users 8 --canaries 20000 --audit-steps 6",
    "complete": "--topology complete --users 80 --canaries 3000 --audit-steps 4",
    "uneven edges": "tests/mutations/uneven.json --canaries 9000 --audit-steps 6",
    "uneven users": "tests/mutations/uneven-users.json --canaries 9000 --audit-steps 6",
    "peers, uneven users": "tests/mutations/uneven-users.json --engine peers --canaries 9000 "
    "--audit-steps 5",
    "pendant user": f"--graph {SEVERAL} --sigma-cdp 1 --sigma-cor 1 --canaries 9000 --audit-steps "
    "4",
    "two steps": "--users 4 --adversary curious --canaries 9000 --audit-steps 2",
    "records": "--users 4 --unit example --batch-size 4 --records 40 --canaries 8000 "
    "--audit-steps 8",
    "processes": "--engine process-group --processes 2 --users 8 --canaries 9000 --audit-steps 6",
    "processes, complete": "--engine process-group --processes 2 --topology complete --users 80 "
    "--canaries 3000 --audit-steps 4",
    "peers": "--engine peers --users 4 --canaries 20000 --audit-steps 5",
    "peers, records": "--engine peers --users 4 --unit example --batch-size 4 --records 40 "
    "--canaries 4000 --audit-steps 8",
    "peers, fixed": "--engine peers --users 4 --unit example --batch-size 4 --records 40 "
    "--sampling fixed --canaries 8000 "
    "--audit-steps 16",
    "private": "--seed secret --users 6 --canaries 9000 --audit-steps 6",
    "private, records": "--seed secret --users 4 --unit example --batch-size 4 --records 40 "
    "--canaries 9000 --audit-steps 8",
}
"""Options of `decor audit`: as few canaries and steps as the fault takes."""

ISSUE = (
    "noise reused over steps",
    "scaled by W",
    "variance used as deviation",
    "one seed for all edges",
    "same sign at both ends",
    "no independent noise at one user",
    "clip after averaging",
    "division by realised batch size",
    "T+1 steps",
    "overlapping shards",
    "stale secret after restart",
    "message recomputed after a crash",
)
"""Those that have to be here, by the name that was given to them."""


@dataclass(frozen=True)
class Edit:
    """`old` stands once in all files of the package that `files` names (a pattern), and becomes
    `new`.
    """

    files: str
    old: str
    new: str


@dataclass(frozen=True)
class Fault:
    """`cost` is what it would do to people.

    `dash` says why no audit can see it, where none is named.
    """

    name: str
    cost: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    audit: str | None = None
    dash: str = ""
    issue: str | None = None

    @property
    def package(self) -> str:
        return self.edits[0].files.partition("/")[0]


CHANNEL, DESCENT, BATCHES = (
    "training/test_channel.py::test_",
    "training/test_descent.py::test_",
    "learning/test_batches.py::test_",
)
TRANSCRIPTS, CONTRACT, CRASHES = (
    f"federation/test_{name}.py::test_" for name in ("transcripts", "contract", "faults")
)
AGREEMENT, GRID, ROOT, STREAM = (
    f"noise/test_{name}.py::test_" for name in ("agreement", "grid", "root", "integer_gaussians")
)
ACCOUNTANT, EXAMPLES, SUBSAMPLED = (
    f"privacy/{name}.py::test_"
    for name in ("loss/test_accountant", "test_examples", "loss/test_subsampled")
)

PRIVATE, SECRET = "training/test_private.py::test_", "noise/test_private_noise.py::test_"
RESUMPTION = "training/test_resume_state.py::test_"

KEPT = "learning/gradients/test_book_keeping.py::test_"
MEMORY = "learning/gradients/test_module_memory.py::test_"
ADAPTERS = "learning/test_lora.py::test_"
CLIP, TILES = "learning/gradients/test_clip.py::test_", "learning/gradients/test_tiles.py::test_"

SLACK = "return _ROUNDINGS / 2 * torch.finfo(dtype).eps + (parameters + 32) * 2.0**-52\n"
EDGE_KEYS, PEER = "net/test_edge_keys.py::test_", "net/test_peer.py::test_"
BOOK = "net/test_receipt_book.py::test_"
CONNECTIONS, LEDGER = "net/test_connections.py::test_", "net/test_ledger.py::test_"
SPENDING = "federation/test_spending.py::test_"
RENEWAL, PROBE = "federation/test_renewal.py::test_", "federation/test_probe.py::test_"
FEATURES = "learning/test_features.py::test_"
GRADIENTS = "learning/gradients/test_gradients.py::test_"
OPACUS, DP_ACCOUNTING = "doors/test_opacus.py::test_", "doors/test_dp_accounting.py::test_"
SITE_NODE = "doors/test_site_node.py::test_"
OTHERS = "an audit looks at messages of engines, not at other packages"
TURN, LOOP = "training/test_turn.py::test_", "federation/test_loop_updates.py::test_"
OWN_LOOPS = "own loops are audited by tests/auditing/test_own_loop.py, not by `decor audit`"
TABLES = "federation/test_member_data.py::test_"
NO_CRASH = "an audit kills nobody"
NO_LIARS = "an audit's users do not lie"
NO_FOLDER = "an audit looks at messages, not at folders or sentences"
ONE_MACHINE = "an audit's users are on one machine, and reach each other directly"
NO_CANCELLING = "sums of canaries do not cancel, and their roundings are far below the noise"
NO_LAW = "the noise's law is right, and the audit hears nothing but messages"

FAULTS = (
    # noise: numbers of the simulator
    Fault(
        "simulator: noise reused over steps",
        "the difference of two steps is free of noise",
        (
            Edit(
                "noise/gaussians.py",
                "_u32(stream), _u32(step), high",
                "_u32(stream), _u32(0), high",
            ),
        ),
        (CHANNEL + "noise_is_fresh_in_every_step",),
        "small",
        issue="noise reused over steps",
    ),
    Fault(
        "simulator: every group of coordinates has the noise of the first",
        "the difference of two coordinates is free of noise",
        (
            Edit(
                "noise/gaussians.py",
                "_bits(a, b, c, d, seed, stream, step, first + k)",
                "_bits(a, b, c, d, seed, stream, step, first)",
            ),
        ),
        (CHANNEL + "noise_is_independent_between_coordinates_and_between_layers[40-ring(10)]",),
        "small",
    ),
    Fault(
        "simulator: coordinates far apart share noise",
        "the difference of two coordinates is free of noise, in large models alone",
        (
            Edit(
                "training/sparse_kernels.py",
                "places[k] * groups + first // GROUP",
                "places[k] * groups",
            ),
        ),
        (CHANNEL + "large_models_on_small_rings_have_the_plans_sigmas_too",),
        "wide",
    ),
    Fault(
        "simulator: all layers have the noise of the first",
        "the difference of two layers is free of noise",
        (
            Edit(
                "noise/gaussians.py", "_u32(stream), _u32(step), high", "_u32(0), _u32(step), high"
            ),
        ),
        (CHANNEL + "noise_is_independent_between_coordinates_and_between_layers[12-ring(10)]",),
        "records",
    ),
    Fault(
        "simulator: all seeds of a grid have the noise of the first",
        "two runs with different seeds reveal together what neither does alone",
        (
            Edit(
                "noise/gaussians.py",
                "fill(out[row, s], seeds[s], stream",
                "fill(out[row, s], seeds[0], stream",
            ),
        ),
        (
            CHANNEL
            + "every_setting_of_a_sweep_has_its_own_law_and_every_seed_its_own_noise[ring(10)]",
        ),
        "records",
    ),
    Fault(
        "simulator: 2 bits of noise after the point",
        "what is not hidden by the noise's few values shows the gradient's low bits",
        (
            Edit(
                "noise/gaussians.py",
                "cosines[i], sines[i] = radius * x, radius * y",
                "cosines[i], sines[i] = np.rint(radius * x * 4) / 4, np.rint(radius * y * 4) / 4",
            ),
        ),
        ("noise/test_gaussians.py::test_every_gaussian_is_box_and_mullers_of_its_own_bits",),
        "uneven edges",
    ),
    # noise: roots of the covariance
    Fault(
        "edges: one seed for all of them and for all users",
        "whoever knows one edge's noise knows everybody's",
        (
            Edit(
                "noise/root.py",
                "values, np.arange(len(start) - 1))",
                "values, np.zeros(len(start) - 1, np.int64))",
            ),
        ),
        (CHANNEL + "transmitted_noise_is_sigmas_on_large_graphs[torus(10, 10)-edges]",),
        "small",
        issue="one seed for all edges",
    ),
    Fault(
        "edges: same sign at both ends",
        "noise does not cancel, and the average model has that of all edges",
        (Edit("noise/root.py", "np.stack([c, -c], 1)", "np.stack([c, c], 1)"),),
        (ROOT + "every_root_times_its_transpose_is_sigma",),
        "small",
        issue="same sign at both ends",
    ),
    Fault(
        "edges: no independent noise at one user",
        "the sum of all messages gives more of everybody away, and of user 0 all against its "
        "neighbours",
        (
            Edit(
                "noise/root.py",
                "alone = np.flatnonzero(own > 0)",
                "alone = np.flatnonzero(own > 0)[1:]",
            ),
        ),
        (ROOT + "every_root_times_its_transpose_is_sigma",),
        "small",
        issue="no independent noise at one user",
    ),
    Fault(
        "edges: weak ones are dropped",
        "users behind weak edges have less noise than was accounted",
        (Edit("noise/root.py", "    kept = c > 0\n", "    kept = c > 0.1 * c.max(initial=0.0)\n"),),
        (ROOT + "every_root_is_sigmas_on_any_graph_with_any_noise_on_its_edges",),
        "uneven edges",
    ),
    Fault(
        "edges: noise not multiplied by c",
        "edges have a deviation of one, whatever was planned",
        (Edit("noise/root.py", "np.stack([c, -c], 1)", "np.stack([c > 0, -1.0 * (c > 0)], 1)"),),
        (ROOT + "every_root_times_its_transpose_is_sigma",),
        "small",
    ),
    Fault(
        "band: own deviation used as a variance",
        "with sigma_cdp above one everybody has less noise of its own",
        (
            Edit(
                "noise/root.py",
                "lower[0] = np.broadcast_to(s, users)[order] ** 2",
                "lower[0] = np.broadcast_to(s, users)[order]",
            ),
        ),
        (ROOT + "every_root_times_its_transpose_is_sigma",),
        "wide",
        issue="variance used as deviation",
    ),
    # own noise of each user
    Fault(
        "own noise: every user has the mean level",
        "who needs the most noise of its own has less than was accounted",
        (Edit("noise/root.py", ".ravel(), own[alone]]", ".ravel(), 0 * alone + own.mean()]"),),
        (ROOT + "every_root_is_sigmas_with_own_noise_of_each_user",),
        "uneven users",
    ),
    Fault(
        "own noise: what is beyond the least is dropped in the basis of eigenvectors",
        "every user has the least level of all",
        (
            Edit(
                "noise/root.py",
                "own = np.zeros(users) if ground is None else ground",
                "own = np.zeros(users)",
            ),
        ),
        (ROOT + "every_root_is_sigmas_with_own_noise_of_each_user",),
        "uneven users",
    ),
    Fault(
        "own noise: real users draw nothing beside the least",
        "every user has the least level of all, whatever was planned",
        (Edit("noise/grid.py", "SHARED) if own_multiple else None", "SHARED) if False else None"),),
        (GRID + "a_message_has_what_its_user_draws_beside_from_a_stream_of_its_own",),
        "peers, uneven users",
    ),
    Fault(
        "own noise: a rank gives its users the levels of other users",
        "a user in the second process has the level of one in the first",
        (
            Edit(
                "noise/private_noise.py",
                "(row, int(multiples[user]))",
                "(row, int(multiples[row]))",
            ),
        ),
        (SECRET + "users_draw_their_own_levels_in_one_process_and_in_two",),
        dash="an audit of a private run has one process",
    ),
    Fault(
        "accountant: own noise in units of the largest level",
        "epsilon is reported too small for every user but one",
        (
            Edit(
                "privacy/loss/accountant.py",
                "return min(self.sigma_cdp) if isinstance",
                "return max(self.sigma_cdp) if isinstance",
            ),
        ),
        (ACCOUNTANT + "own_noise_of_each_user_is_what_its_epsilon_says",),
        dash="an audit attacks the noise, which is as planned",
    ),
    Fault(
        "accountant: a user whose neighbours collude has the most own noise of all",
        "epsilon of users who can be isolated is reported too small",
        (
            Edit(
                "privacy/leverage/coalition.py",
                "per_user = np.where(alone, local, others.per_user)",
                "per_user = np.where(alone, local.min(), others.per_user)",
            ),
        ),
        (ACCOUNTANT + "own_noise_of_each_user_is_what_its_epsilon_says",),
        dash="an audit attacks the noise, which is as planned",
    ),
    # noise: secrets and the grid of real users
    Fault(
        "peers: an edge's key is the same in every step",
        "the difference of two steps is free of the edge's noise",
        (
            Edit(
                "noise/agreement.py",
                '_hmac(self._chain, b"key" + struct.pack("<Q", step))',
                '_hmac(self._confirmation, b"key")',
            ),
        ),
        (AGREEMENT + "both_ends_have_the_same_key_in_every_step_and_another_in_each",),
        "peers",
        issue="noise reused over steps",
    ),
    Fault(
        "peers: keys of past steps can be had again",
        "whoever seizes a machine takes the noise off all earlier messages",
        (Edit("noise/agreement.py", 'self._chain[:] = _hmac(self._chain, b"next")', "pass"),),
        (AGREEMENT + "the_chain_after_a_step_does_not_hold_that_steps_key",),
        dash=NO_LAW,
    ),
    Fault(
        "peers: the secret is made from what both have said in public",
        "whoever records the handshake has the edge's noise",
        (
            Edit(
                "noise/agreement.py",
                "info=_SECRET).derive(shared)",
                "info=_SECRET).derive(self.edge.federation)",
            ),
        ),
        (AGREEMENT + "the_secret_needs_the_exchange_and_not_only_what_was_said",),
        dash=NO_LAW,
    ),
    Fault(
        "peers: an edge's key for the exchange is made from the identity",
        "after a restart the same secret again: noise that has been used, and that whoever takes "
        "the identity can make",
        (
            Edit(
                "noise/agreement.py",
                "X25519PrivateKey.from_private_bytes(random(32))",
                "X25519PrivateKey.from_private_bytes(hashlib.sha256(identity.private_bytes_raw()).digest())",
            ),
        ),
        (AGREEMENT + "two_agreements_of_the_same_two_share_nothing",),
        "peers",
        issue="stale secret after restart",
    ),
    Fault(
        "peers: keys for the exchange have 16 bits",
        "whoever has recorded the handshake tries all of them, and has the edge's noise",
        (
            Edit(
                "noise/agreement.py",
                "X25519PrivateKey.from_private_bytes(random(32))",
                "X25519PrivateKey.from_private_bytes(random(2) + bytes(30))",
            ),
        ),
        (AGREEMENT + "a_key_is_all_of_32_bytes_of_the_randomness_it_is_given",),
        "peers",
    ),
    Fault(
        "private run: noise reused over steps",
        "the difference of two steps is free of noise",
        (
            Edit(
                "noise/private_noise.py",
                "self._secret.key(_NOISE, step, first, group)",
                "self._secret.key(_NOISE, 0, first, group)",
            ),
        ),
        (
            "noise/test_private_noise.py::test_the_covariance_is_the_planned_one_and_steps_know_nothing_of_each_other",
        ),
        "private",
        issue="noise reused over steps",
    ),
    Fault(
        "private run: same sign at both ends",
        "noise does not cancel, and the average model has that of all edges",
        (
            Edit(
                "noise/private_noise.py",
                "            minus[k] -= value\n",
                "            minus[k] += value\n",
            ),
        ),
        (
            "noise/test_private_noise.py::test_the_covariance_is_the_planned_one_and_steps_know_nothing_of_each_other",
        ),
        "private",
        issue="same sign at both ends",
    ),
    Fault(
        "peers: one secret for all edges",
        "every neighbour knows the noise of all",
        (
            Edit(
                "noise/agreement.py",
                "HKDF(SHA256(), 96, salt=transcript, info=_SECRET).derive(shared)",
                "HKDF(SHA256(), 96, salt=None, info=_SECRET).derive(self.edge.federation)",
            ),
        ),
        (TRANSCRIPTS + "the_noise_on_the_wire_has_no_memory",),
        dash="a step with two equal keys is refused, so nothing is sent",
        issue="one seed for all edges",
    ),
    Fault(
        "peers: the stream begins again every 8,192 coordinates",
        "the difference of two coordinates is free of noise, in large models alone",
        (
            Edit(
                "noise/integer_gaussians.py",
                "        self._cipher.update_into(",
                "        _cipher(self._key, 0).update_into(",
            ),
        ),
        (STREAM + "known_answers",),
        "peers",
    ),
    Fault(
        "peers: edges' multiples one too small",
        "every edge has a little less noise than planned",
        (
            Edit(
                "noise/grid.py",
                "return math.isqrt(square - 1) + 1 if square",
                "return math.isqrt(square - 1) if square",
            ),
        ),
        (GRID + "an_edges_deviation_is_never_below_the_planned_and_by_less_than_a_multiple_above",),
        "peers",
    ),
    Fault(
        "peers: no dither",
        "gradients round with a bias that depends on them: what is added is not what was clipped",
        (Edit("noise/grid.py", "(np.int64(np.rint(near)) + dither)", "np.int64(np.rint(near))"),),
        (GRID + "gradients_round_at_random_without_bias_and_independently_of_the_noise",),
        dash="a step of the grid is a 655,440th of the noise",
    ),
    Fault(
        "peers: an edge's noise is not multiplied",
        "edges have a small part of the noise that was planned",
        (
            Edit(
                "noise/grid.py",
                "_add(noise, np.int64(multiple), part)",
                "_add(noise, np.int64(1 if multiple > 0 else -1), part)",
            ),
        ),
        (
            GRID
            + "a_message_is_the_gradient_plus_own_noise_plus_signed_multiples_of_the_edges_noise",
        ),
        "peers",
    ),
    # engines
    Fault(
        "simulator: edges' noise scaled by W",
        "a third of the correlated noise on a ring; the paper's code did this",
        (
            Edit(
                "training/channel.py",
                "np.asarray(plan.sigma_cor, dtype=np.float64), plan",
                "plan.sigma_cor * np.array([plan.topology.mixing[i, j] for i, j in "
                "plan.topology.edges]), plan",
            ),
        ),
        (CHANNEL + "transmitted_noise_is_sigmas_on_small_graphs[ring(16)-float32]",),
        "small",
        issue="scaled by W",
    ),
    Fault(
        "eigenvectors: variance used as deviation",
        "where sigmas are below one there is less noise than planned",
        (
            Edit(
                "training/channel.py",
                "scale = np.sqrt(s**2 + tops**2 * values[:, None])",
                "scale = s**2 + tops**2 * values[:, None]",
            ),
        ),
        (CHANNEL + "transmitted_noise_is_sigmas_on_small_graphs[ring(16)-float32]",),
        "small",
        issue="variance used as deviation",
    ),
    Fault(
        "eigenvectors: everybody's noise is that of the same draw",
        "whoever knows its own noise knows everybody's",
        (
            Edit(
                "training/channel.py",
                "_fill(Z.numpy(), self.seeds, k, step, threads)",
                "_fill(Z.numpy(), self.seeds, k, step, threads); Z.copy_(Z[:1].expand_as(Z))",
            ),
        ),
        (CHANNEL + "transmitted_noise_is_sigmas_on_small_graphs[ring(16)-float32]",),
        "small",
    ),
    Fault(
        "complete graph: one edge's noise a user instead of all",
        "a seventieth of the correlated variance among seventy users",
        (
            Edit(
                "training/channel.py",
                "math.sqrt(users) * uniform_sigma_cor(p)",
                "uniform_sigma_cor(p)",
            ),
        ),
        (CHANNEL + "transmitted_noise_is_sigmas_on_large_graphs[complete(80)-closed form]",),
        "complete",
    ),
    Fault(
        "simulator: gossip before noise, where nobody listens",
        "what is averaged and given on has no noise on it; a listener hears another run than the "
        "one that is trained",
        (
            Edit(
                "training/channel.py",
                "        self.noise(blocks, alpha, step, threads)\n        return "
                "self.mix(blocks, gossip, threads)",
                "        blocks = self.mix(blocks, gossip, threads)\n"
                "        self.noise(blocks, alpha, step, threads)\n        return blocks",
            ),
        ),
        (
            CHANNEL
            + "one_round_of_gossip_leaves_of_the_correlated_noise_what_lemma_noisereduce_says",
        ),
        "small",
    ),
    Fault(
        "simulator: clip after averaging",
        "one record moves a message by as much as a whole batch may",
        (
            Edit(
                "training/*.py",
                "add = gradients.add_clipped_examples if self.by_example else",
                "add =",
            ),
        ),
        (DESCENT + "clipped_records_at_example_level_follow_the_reference",),
        "records",
        issue="clip after averaging",
    ),
    Fault(
        "simulator: T+1 steps",
        "one message more than was paid for",
        (
            Edit("training/simulation.py", "plan.exposure.steps\n", "plan.exposure.steps + 1\n"),
            Edit(
                "training/descent.py",
                "rates(s.learning_rate, exposure.steps)",
                "rates(s.learning_rate, exposure.steps + 1)",
            ),
        ),
        (DESCENT + "a_run_takes_exactly_its_steps_and_its_guarantee_is_the_plans",),
        "small",
        issue="T+1 steps",
    ),
    Fault(
        "simulator: a resumed run begins with the first step's noise",
        "two gradients under one noise: their difference is bare",
        (
            Edit(
                "training/*.py",
                "self.taken, self.history[0] = resumed.start, ",
                "self.taken, self.history[0] = 0, ",
            ),
        ),
        (RESUMPTION + "a_checkpoint_taken_on_the_way_resumes_to_the_same_end",),
        dash="an audit resumes nothing",
        issue="noise reused over steps",
    ),
    Fault(
        "simulator: a resumed run makes its last message again",
        "two gradients under one noise: their difference is bare",
        (
            Edit(
                "training/*.py",
                "return cls(run.steps_taken,",
                "return cls(max(0, run.steps_taken - 1),",
            ),
        ),
        (RESUMPTION + "a_checkpoint_taken_on_the_way_resumes_to_the_same_end",),
        dash="an audit resumes nothing",
        issue="message recomputed after a crash",
    ),
    Fault(
        "simulator: momentum of gradients without noise",
        "what is hidden is a sum that is up to 1 / (1 - momentum) clips long",
        (
            Edit(
                "training/*.py",
                "        self.channel.noise(to, one, step, threads)\n",
                "        to = [block.clone() for block in to]\n        self.channel.noise(to, "
                "one, step, threads)\n",
            ),
        ),
        (
            CHANNEL + "with_momentum_every_step_still_adds_fresh_noise_of_sigma",
            DESCENT + "the_engines_own_noise_fed_to_the_reference_gives_the_same_models",
        ),
        dash="an audit trains without momentum",
    ),
    Fault(
        "simulator: weight decay shrinks the noise and not the gradient",
        "less noise than the clip was accounted with",
        (
            Edit(
                "training/*.py",
                "self._add_clipped(self.models, -rate / shrink, rate, batches)",
                "self._add_clipped(self.models, -rate / shrink**2, rate, batches)",
            ),
        ),
        (DESCENT + "the_engines_own_noise_fed_to_the_reference_gives_the_same_models",),
        dash="an audit trains without weight decay",
    ),
    Fault(
        "process group: an edge has another number at every process",
        "noise at the borders does not cancel, and is that of other edges",
        (
            Edit(
                "noise/root.py",
                "self.values[here], self.places[kept])",
                "self.values[here], np.arange(len(kept)))",
            ),
        ),
        (
            "distributed/test_process_group.py::test_every_number_of_processes_gives_the_numbers_of_one[2]",
        ),
        "processes",
    ),
    Fault(
        "process group: on a complete graph users are counted anew at every process",
        "users at the same place of two processes have the same noise",
        (Edit("training/sparse_kernels.py", "members[i] * groups", "i * groups"),),
        (
            "distributed/test_process_group.py::test_every_number_of_processes_gives_the_numbers_of_one[2]",
        ),
        "processes, complete",
    ),
    Fault(
        "process group: the higher end of an edge leaves its noise out",
        "users with higher numbers have their own noise alone",
        (
            Edit(
                "distributed/rank_share.py",
                "            return root.by_edges(count, *rest).rows_for(",
                "            found = root.by_edges(count, *rest)\n"
                "            found.values[found.values < 0] = 0.0\n            return "
                "found.rows_for(",
            ),
        ),
        (
            "distributed/test_process_group.py::test_every_number_of_processes_gives_the_numbers_of_one[2]",
        ),
        "processes",
    ),
    Fault(
        "grid: made for twice the shift",
        "roundings of a gradient are hidden half as well as is said",
        (
            Edit(
                "training/release_grid.py",
                "        gradient_shift(exposure),\n",
                "        2 * gradient_shift(exposure),\n",
            ),
        ),
        ("training/test_release_grid.py",),
        dash="a step of the grid is a 655,440th of the noise",
    ),
    # learning
    Fault(
        "gradients up to two clips long are not clipped",
        "one user's data move its message twice as far as was accounted, if they know how",
        (
            Edit(
                "learning/gradients/clip.py",
                "    if length <= limit:\n        return 1.0\n",
                "    if length <= 2 * limit:\n        return 1.0\n",
            ),
        ),
        (
            "learning/gradients/test_gradients.py::test_no_data_makes_what_is_added_longer_than_the_clip",
        ),
        "small",
    ),
    Fault(
        "the length of a sum over tokens is as rounded",
        "where tokens cancel an example is longer than its clip",
        (
            Edit(
                "learning/gradients/contributions.py",
                "error = ((tokens + 8) * rounding(g) + cut) * size",
                "error = 0.0 * size",
            ),
        ),
        (KEPT + "no_length_of_a_product_is_too_short",),
        dash="audited models have no tokens",
    ),
    Fault(
        "the length from products of tokens is as rounded",
        "where tokens cancel an example is longer than its clip",
        (
            Edit(
                "learning/gradients/contributions.py",
                "(square.clamp_min(0.0) + error * size * size).sqrt()",
                "square.clamp_min(0.0).sqrt()",
            ),
        ),
        (KEPT + "no_length_of_a_product_is_too_short",),
        dash="audited models have no tokens",
    ),
    Fault(
        "products of tokens that vanish count as zero",
        "tiny inputs with large gradients are not clipped",
        (
            Edit(
                "learning/gradients/contributions.py",
                "inside = _is_safe(back) & _is_safe(into) & (size > least)",
                "inside = size >= 0",
            ),
        ),
        (KEPT + "no_length_of_a_product_is_too_short",),
        dash="audited models have no tokens",
    ),
    Fault(
        "products of products of tokens that vanish count as zero",
        "small inputs with small gradients are longer than their clip",
        (
            Edit(
                "learning/gradients/contributions.py",
                "    inside &= (size > least) & (size < _LARGEST_SIZE)\n",
                "",
            ),
        ),
        (KEPT + "no_length_is_too_short_where_products_of_products_vanish",),
        dash="audited models have no tokens",
    ),
    Fault(
        "what is recorded is not compared with autograd",
        "a rule that misses a part of a gradient is trained with",
        (
            Edit(
                "learning/gradients/book_keeping.py",
                "if not gap <= most:",
                "if False:",
            ),
        ),
        (KEPT + "a_wrong_rule_is_noticed_before_training_whatever_the_data_pad",),
        dash="no rule is wrong",
    ),
    Fault(
        "products of tokens count whatever row they look up",
        "an embedding's gradient is longer than its clip where rows cancel",
        (
            Edit(
                "learning/gradients/contributions.py",
                "same = ids.unsqueeze(2) == ids.unsqueeze(1)",
                "same = torch.ones_like(ids.unsqueeze(2) == ids.unsqueeze(1))",
            ),
        ),
        (KEPT + "no_length_of_a_lookup_is_too_short",),
        dash="audited models have one token",
    ),
    Fault(
        "a convolution has the length of its first group",
        "the gradient of grouped weights is longer than its clip",
        (
            Edit(
                "learning/gradients/contributions.py",
                "            parts.append((each.length.view(-1, groups), each.size.view(-1, groups)))",
                "            parts.append((each.length.view(-1, groups)[:, :1], each.size.view(-1, groups)[:, :1]))",
            ),
        ),
        (KEPT + "no_length_of_a_convolution_is_too_short",),
        dash="audited models have no convolutions",
    ),
    Fault(
        "the gradient of a norm's weight leaves out its input",
        "what is clipped and sent is no gradient",
        (
            Edit(
                "learning/gradients/layer_rules.py",
                "Given(add_up(g * hat.detach()))",
                "Given(add_up(g))",
            ),
        ),
        (KEPT + "layers_of_any_shape_have_the_gradients_of_autograd",),
        dash="audited models have no norms",
    ),
    Fault(
        "padding of an embedding is trained",
        "models of padded texts differ from torch's",
        (
            Edit(
                "learning/gradients/layer_rules.py",
                "(flat == silent)",
                "(flat == -1)",
            ),
        ),
        (KEPT + "each_kind_of_layer_has_the_gradients_of_autograd",),
        dash="audited models have no padding",
    ),
    Fault(
        "operands that a GPU cuts count as exact",
        "with TF32 an example is longer than its clip",
        (
            Edit(
                "learning/gradients/contributions.py",
                "    error = ((tokens + 8) * rounding(g) + cut) * size\n",
                "    error = (tokens + 8) * rounding(g) * size\n",
            ),
        ),
        (KEPT + "products_of_cut_operands_are_part_of_every_length",),
        dash="audits run on a CPU",
    ),
    Fault(
        "bf16: a factor times a gradient is as rounded",
        "an example whose gradient is rounded up is longer than its clip",
        (
            Edit(
                "learning/gradients/contributions.py",
                "max(product_error(like), _ROUNDED if short else 0.0)",
                "product_error(like)",
            ),
        ),
        (KEPT + "with_short_operands_no_example_adds_more_than_its_clip",),
        dash="audits compute in full precision",
    ),
    Fault(
        "tf32: the length is that of operands that were cut",
        "an example's gradient is longer than what is left of it in the products for its length",
        (
            Edit(
                "learning/gradients/contributions.py",
                "torch.minimum(bound.length + cut * size, size)",
                "bound.length",
            ),
        ),
        (KEPT + "the_length_of_what_tf32_cuts_is_not_too_short",),
        dash="audits compute in full precision",
    ),
    Fault(
        "lengths on a diagonal vanish",
        "on a GPU tiny inputs with large gradients are not clipped",
        (
            Edit(
                "learning/gradients/contributions.py",
                "vanished = math.sqrt(products.shape[1] * width) * 2.0**-63",
                "vanished = 0.0",
            ),
        ),
        (KEPT + "no_length_on_the_diagonal_of_products_is_too_short",),
        dash="audits of this table are on a CPU",
    ),
    Fault(
        "adapters: the body is trained as well",
        "its parameters are sent and stored, and take a part of the clip",
        (
            Edit(
                "learning/lora.py",
                "nn.Parameter(p.detach(), requires_grad=False)",
                "nn.Parameter(p.detach())",
            ),
        ),
        (ADAPTERS + "adapters_and_named_layers_alone_are_trained",),
        dash="audited models have no adapters",
    ),
    Fault(
        "adapters: run folders and releases hold the body",
        "what nobody may have published is in every released folder",
        (
            Edit(
                "results/run.py",
                '_TENSORS = ("models", "velocity", "fixed")',
                '_TENSORS = ("models", "velocity", "fixed", "frozen")',
            ),
        ),
        (ADAPTERS + "a_private_run_keeps_and_releases_adapters_alone",),
        dash=NO_FOLDER,
    ),
    Fault(
        "adapters: a run's model is made on any body",
        "what it predicts is not what was trained and measured",
        (
            Edit(
                "results/run.py",
                "if body_summary(module) != recorded:",
                "if False:",
            ),
        ),
        (ADAPTERS + "a_run_makes_its_model_on_the_body_that_it_was_trained_on",),
        dash=NO_FOLDER,
    ),
    Fault(
        "a module's own precision counts as the model's",
        "an example whose gradient is rounded to eight bits is longer than its clip",
        (
            Edit(
                "learning/gradients/book_keeping.py",
                "if torch.finfo(kind).eps > torch.finfo(self.dtype).eps:",
                "if False:",
            ),
        ),
        (KEPT + "a_module_with_a_precision_of_its_own_adds_no_more_than_the_clip",),
        dash="audited models have one precision",
    ),
    Fault(
        "a CPU multiplies as the program has set",
        "with matrix units an example is longer than its clip",
        (
            Edit(
                "training/cuda/steps.py",
                "kinds = [*of_gpu, backends.mkldnn.matmul, backends.mkldnn.conv]",
                "kinds = of_gpu",
            ),
        ),
        (
            "training/test_descent.py::test_steps_compute_in_full_precision_whatever_a_program_"
            "has_set",
        ),
        dash="audits set nothing",
    ),
    Fault(
        "a module keeps what it has seen",
        "an example moves the gradients of later ones, each by up to a clip",
        (
            Edit(
                "learning/gradients/module_memory.py",
                "if name not in _OWN and _has_examples(now[name])]",
                "if False]",
            ),
        ),
        (MEMORY + "what_is_kept_for_later_is_dropped_after_each_step",),
        dash="audited models keep nothing",
    ),
    Fault(
        "a model that remembers examples is trained",
        "what its user sees is another model than the one that is trained",
        (Edit("learning/gradients/modules.py", "if has_memory:", "if False:"),),
        (MEMORY + "a_model_that_shows_an_example_to_later_ones_is_refused",),
        dash="audited models keep nothing",
    ),
    Fault(
        "two uses of a parameter are two parameters",
        "a shared layer's gradient is longer than its clip",
        (
            Edit(
                "learning/gradients/contributions.py",
                "        length = torch.minimum(torch.cat(total) + error, size)",
                "        parts = [part.bound().length for part in self.parts]\n        length = torch.stack(parts).square().sum(0).sqrt()",
            ),
        ),
        (KEPT + "a_parameter_with_two_uses_has_the_length_of_their_sum",),
        dash="audited models have no tokens",
    ),
    Fault(
        "gradients are not clipped",
        "one user's data move its message as far as they like",
        (
            Edit(
                "learning/gradients/clip.py",
                "    if length <= limit:\n",
                "    if length < np.inf:\n",
            ),
        ),
        (
            "learning/gradients/test_gradients.py::test_no_data_makes_what_is_added_longer_than_the_clip",
        ),
        "small",
    ),
    Fault(
        "the norm is that of the first layer",
        "with several layers a gradient is longer than its clip",
        (
            Edit(
                "learning/gradients/clip.py",
                "    for _, rows in pairs:\n        _join_lengths(rows, joint)\n",
                "    for _, rows in pairs[:1]:\n        _join_lengths(rows, joint)\n",
            ),
        ),
        (
            "learning/gradients/test_gradients.py::test_no_data_makes_what_is_added_longer_than_the_clip",
        ),
        dash="canaries of whole users are one layer",
    ),
    Fault(
        "linear models: a record may be twice as long as its clip",
        "one record moves a message by more than was accounted, on the path of logistic "
        "regression alone",
        (
            Edit(
                "learning/gradients/linear.py",
                "min(abs(value), limits[k] / length)",
                "min(abs(value), 2 * limits[k] / length)",
            ),
        ),
        (
            "learning/gradients/test_gradients.py::test_no_data_makes_what_is_added_longer_than_the_clip",
        ),
        "records",
    ),
    Fault(
        "networks: a record's norm is that of its first layer",
        "a record whose gradient is in the other layers is not clipped, on the path of dense "
        "networks alone",
        (
            Edit(
                "learning/gradients/dense_layers.py",
                "for k in range(1, len(back)): norms = torch.hypot(norms, self._length(k, lengths",
                "for k in range(1, 1): norms = torch.hypot(norms, self._length(k, lengths",
            ),
        ),
        (
            "learning/gradients/test_gradients.py::test_no_data_makes_what_is_added_longer_than_the_clip",
        ),
        "records",
    ),
    Fault(
        "networks: a record's norm is taken in float32",
        "the square of a small probability is nothing: a record far away is 12,383 clips long",
        (
            Edit(
                "learning/gradients/dense_layers.py",
                "norms = first.repeat_interleave(some, 0) * lengths(back[0])",
                "norms = first.repeat_interleave(some, 0) * "
                "back[0].square().sum(-1).sqrt().double()",
            ),
        ),
        (CLIP + "probabilities_whose_squares_vanish_are_clipped_all_the_same",),
        dash="canaries are of moderate numbers",
    ),
    Fault(
        "clips are not shorter by what is rounded after them",
        "what is added is up to parts in 10^7 longer than was accounted",
        (Edit("learning/gradients/clip.py", SLACK, "return 0.0\n"),),
        (CLIP + "rounding_alone_takes_no_gradient_beyond_its_clip",),
        dash="a law is measured to a percent",
    ),
    Fault(
        "sums of float32 tiles cost nothing of the clip",
        "a record moves a sum by its clip and by what the sum is rounded by",
        (
            Edit(
                "learning/gradients/tiles.py",
                "total += 2 * float32_limits(sizes) * (WIDEST + 2) * 2.0**-24",
                "total += 0",
            ),
        ),
        (CLIP + "one_record_more_moves_a_float32_sum_by_its_clip_at_most",),
        dash="a law is measured to a percent",
    ),
    Fault(
        "sums of narrow tiles are allowed for as those of wide ones",
        "a record moves the sum of a large batch by its clip and by what more additions round",
        (
            Edit(
                "learning/gradients/tiles.py",
                "total = 2 * most * (most + 3) * _ROUNDED",
                "total = 2 * most * (WIDEST + 2 + most / WIDEST) * _ROUNDED",
            ),
        ),
        (TILES + "the_allowance_for_sums_covers_what_they_can_be_rounded_by",),
        dash="a law is measured to a percent",
    ),
    Fault(
        "batches of random size choose their tiles as fixed ones do",
        "nothing yet; but a width that followed from who was drawn would move others' last bits",
        (
            Edit(
                "learning/batches.py",
                'fixed = sampling == "fixed"\n    return Batch',
                "fixed = True\n    return Batch",
            ),
        ),
        (TILES + "only_batches_of_a_fixed_size_say_so",),
        dash="widths follow from the planned size in either case",
    ),
    Fault(
        "peers: a node adds up its examples in the model's type",
        "one record moves a float32 sum by its clip and by what the sum is rounded by",
        (
            Edit(
                "federation/local_gradient.py",
                "np.zeros(self.parameters), self",
                "np.zeros(self.parameters, self.dtype), self",
            ),
        ),
        (CLIP + "a_node_adds_up_its_examples_in_double_precision",),
        dash="a law is measured to a percent",
    ),
    Fault(
        "tiles: shapes are not tried out",
        "where a record stands changes its gradient: one record less moves those of others",
        (
            Edit(
                "learning/gradients/tiles.py",
                "if width <= widest and same(width, columns):",
                "if width <= widest:",
            ),
        ),
        (TILES + "a_path_that_knows_places_is_taken_one_example_at_a_time",),
        dash="a law is measured to a percent",
    ),
    Fault(
        "records are divided by the realised batch size",
        "one record changes the weight of all others, and counts for more in a small batch",
        (
            Edit(
                "learning/batches.py",
                "inside.double() / size, planned)",
                "inside.double() / torch.from_numpy(np.maximum(self._counts[:, None], 1)), planned)",
            ),
        ),
        (BATCHES + "weights_are_one_over_the_expected_size_and_padding_weighs_nothing",),
        "records",
        issue="division by realised batch size",
    ),
    Fault(
        "peers: records are divided by the realised batch size",
        "one record changes the weight of all others, and counts for more in a small batch",
        (
            Edit(
                "learning/batches.py",
                "Batch(torch.from_numpy(taken).unsqueeze(0), 1.0 / size,",
                "Batch(torch.from_numpy(taken).unsqueeze(0), 1.0 / len(taken),",
            ),
        ),
        (BATCHES + "a_real_users_poisson_batches_take_every_record_at_its_rate_independently",),
        dash="in an audit of peers batches have hundreds of records, and sizes that differ by "
        "little",
        issue="division by realised batch size",
    ),
    Fault(
        "batches are the same in every step",
        "who is taken is taken always: sampling hides nobody",
        (
            Edit(
                "learning/batches.py",
                "+ np.uint64(step)) + np.uint64(user))",
                "+ np.uint64(0)) + np.uint64(user))",
            ),
        ),
        (BATCHES + "users_seeds_and_steps_draw_independently",),
        "records",
    ),
    Fault(
        "all users draw their batches together",
        "a user who knows its own batch knows everybody's: sampling hides nobody from it",
        (
            Edit(
                "learning/batches.py",
                "np.uint64(step)) + np.uint64(user))",
                "np.uint64(step)) + np.uint64(0))",
            ),
        ),
        (BATCHES + "users_seeds_and_steps_draw_independently",),
        "records",
    ),
    Fault(
        "private run: all users draw their batches together",
        "a user who knows its own batch knows everybody's: sampling hides nobody from it",
        (
            Edit(
                "learning/batches.py",
                "start + sample(drawn[start : start + held], size, self.common)",
                "start + sample(drawn[:held], size, self.common)",
            ),
        ),
        (
            BATCHES
            + "a_private_runs_poisson_batches_take_every_record_at_its_users_rate_independently",
        ),
        "private, records",
    ),
    Fault(
        "peers: fixed batches can take a record twice",
        "a record that is taken twice moves a message twice as far as was accounted",
        (
            Edit(
                "learning/batches.py",
                "        choose(words, records, np.arange(records), taken)\n",
                "        taken[:] = words[:size] % np.uint32(records)\n",
            ),
        ),
        (BATCHES + "a_real_users_fixed_batches_have_their_size_and_every_record_alike",),
        "peers, fixed",
    ),
    Fault(
        "records are taken at the rate of the smallest shard",
        "users with larger shards send more of each record than was accounted",
        (
            Edit(
                "learning/batches.py",
                "if common else size / self.records",
                "if common else size / np.minimum(self.records, self.records.min())",
            ),
        ),
        (BATCHES + "every_record_is_taken_at_its_users_rate",),
        dash="an audit gives everybody as many records",
    ),
    Fault(
        "records are taken twice as often",
        "sampling hides half as well as was accounted",
        (
            Edit(
                "learning/batches.py",
                "if common else size / self.records",
                "if common else np.minimum(1.0, 2 * size / self.records)",
            ),
        ),
        (BATCHES + "every_record_is_taken_at_its_users_rate",),
        "records",
    ),
    Fault(
        "overlapping shards",
        "one person's record is at two users, and its privacy is spent twice",
        (
            Edit(
                "learning/shards.py",
                "return tuple(np.split(",
                "return tuple(np.unique(np.r_[part, order[:1]]) for part in np.split(",
            ),
        ),
        ("learning/test_shards.py::test_every_record_has_exactly_one_owner",),
        dash="an audit brings its own data",
        issue="overlapping shards",
    ),
    # privacy: the accountant
    Fault(
        "accountant: T-1 steps",
        "a step that nobody has paid for",
        (
            Edit(
                "privacy/loss/accountant.py",
                "return step * step * segment.exposure.steps",
                "return step * step * (segment.exposure.steps - 1)",
            ),
        ),
        (ACCOUNTANT + "composition_over_steps_is_that_of_dp_accounting",),
        "two steps",
    ),
    Fault(
        "accountant: no composition",
        "a run's epsilon is said to be that of one step; the paper's code did this at example "
        "level",
        (
            Edit(
                "privacy/loss/accountant.py",
                "return step * step * segment.exposure.steps",
                "return step * step",
            ),
        ),
        (ACCOUNTANT + "composition_over_steps_is_that_of_dp_accounting",),
        "two steps",
    ),
    Fault(
        "accountant: the square root of a leverage is forgotten",
        "noise multipliers too large, and epsilons too small",
        (
            Edit(
                "privacy/loss/accountant.py",
                "(exposure.clip * np.sqrt(leverage) * _ROUNDING)",
                "(exposure.clip * leverage * _ROUNDING)",
            ),
        ),
        (
            EXAMPLES
            + "an_epsilon_is_that_of_the_subsampled_gaussian_with_the_leverage_of_the_graph",
        ),
        "records",
    ),
    Fault(
        "accountant: delta spent twice",
        "an epsilon for half the delta that it needs",
        (
            Edit(
                "privacy/loss/accountant.py",
                "    delta = validate_delta(delta)\n",
                "    delta = min(2 * validate_delta(delta), 0.999)\n",
            ),
        ),
        (ACCOUNTANT + "composition_over_steps_is_that_of_dp_accounting",),
        "two steps",
    ),
    Fault(
        "accountant: the mean over users instead of the worst",
        "a user at the edge of the graph has more to lose than it is told",
        (
            Edit(
                "privacy/leverage/coalition.py",
                "return float(self.per_user.max())",
                "return float(self.per_user.mean())",
            ),
        ),
        (ACCOUNTANT + "epsilon_of_every_user_is_reported",),
        "pendant user",
    ),
    Fault(
        "accountant: the leverage of the whole graph against a curious user",
        "a neighbour who takes its own noise away learns more than is said",
        (
            Edit(
                "privacy/leverage/coalition.py",
                "    if colluders == 0:\n",
                "    if colluders in (0, 1):\n",
            ),
        ),
        (
            "privacy/leverage/test_coalition.py::test_the_worst_coalition_is_the_one_found_by_trying_all",
        ),
        "pendant user",
    ),
    Fault(
        "accountant: users on two symmetric graphs are called equally exposed to a neighbour",
        "the sentence of a guarantee hides that some users are more exposed than others",
        (
            Edit(
                "privacy/loss/accountant.py",
                "    if len(cut) > 1 and adversary.colluders:",
                "    if False:",
            ),
        ),
        (ACCOUNTANT + "users_of_two_symmetric_graphs_need_not_be_alike",),
        dash="an audit measures epsilons, and reads no sentence",
    ),
    Fault(
        "task: a node whose records are of one class refuses",
        "neighbours see by its absence that all its records are of one class",
        (
            Edit(
                "learning/task.py",
                "if self.users == 1 or not has_classes(",
                "if not has_classes(",
            ),
        ),
        ("learning/test_task_data.py::test_a_label_of_one_class_or_none_is_refused",),
        dash="an audit's canaries are no classes",
    ),
    Fault(
        "accountant: a user's data move its message by C and not by 2 C",
        "half the noise",
        (Edit("privacy/budget.py", "return 2 * self.clip", "return self.clip"),),
        ("privacy/test_budget.py::test_how_far_one_protected_unit_moves_a_message",),
        "two steps",
    ),
    Fault(
        "accountant: the rate of the largest shard for everybody",
        "users with few records are more exposed than they are told",
        (
            Edit(
                "privacy/budget.py",
                "tuple(self.batch_size / m for m in self.records_of(topology))",
                "tuple(self.batch_size / max(self.records_of(topology)) for m in "
                "self.records_of(topology))",
            ),
        ),
        (EXAMPLES + "the_smallest_shard_is_the_most_exposed",),
        dash="an audit gives everybody as many records",
    ),
    Fault(
        "plan: a list of records is taken for users with names",
        "records in another order than the graph's give one user the noise of another",
        (
            Edit(
                "privacy/budget.py",
                "        if topology.labels is not None:\n            raise",
                "        if False:\n            raise",
            ),
        ),
        ("privacy/test_budget.py",),
        dash="an audit gives everybody as many records",
    ),
    Fault(
        "plan: records by name are taken in the order in which they were written",
        "one user has the noise of another, and epsilon is understated",
        (
            Edit(
                "graph/user_values.py",
                "return [given[name] for name in names]",
                "return list(given.values())",
            ),
        ),
        ("privacy/test_budget.py",),
        dash="an audit gives everybody as many records",
    ),
    Fault(
        "train: shards of users with names go by their order",
        "one user trains on the data of another, with its noise",
        (
            Edit(
                "training/validation.py",
                'in_order(dict(zip(task.names, task.shards, strict=True)), topology, "shards")',
                "list(task.shards)",
            ),
        ),
        ("training/test_validation.py",),
        dash="an audit brings its own data",
    ),
    Fault(
        "calibrate: nothing of delta is kept for the noise's tables",
        "peers promise an epsilon for less delta than it needs, or refuse the plan",
        (
            Edit(
                "privacy/budget.py",
                "return Budget(self.epsilon, ACCOUNTED * self.delta)",
                "return self",
            ),
        ),
        ("privacy/test_calibrate.py", "federation/test_federation.py"),
        dash="too little to be measured",
    ),
    Fault(
        "calibrate: twice the sampling rate is allowed what the rate is",
        "couples of noises do not protect users with few records",
        (
            Edit(
                "privacy/leverage/limit.py",
                "lower = self.rates <= rate",
                "lower = self.rates <= 2 * rate",
            ),
        ),
        ("privacy/test_examples.py",),
        dash="an audit gives everybody as many records",
    ),
    Fault(
        "calibrate: any delta is taken",
        "a plan within which somebody's data may be published outright",
        (Edit("privacy/budget.py", "if self.delta <= limit:", "if self.delta <= 1:"),),
        ("privacy/test_budget.py",),
        dash="an audit does not judge what was asked for",
    ),
    Fault(
        "accountant: fixed-size batches composed in one direction",
        "a record that is put in is more exposed than one that is taken out",
        (
            Edit(
                "privacy/loss/subsampled.py",
                '("fixed", "replace"): ((0, 2), (2, 0))',
                '("fixed", "replace"): ((2, 0), (2, 0))',
            ),
        ),
        (SUBSAMPLED + "two_and_three_steps_are_above_the_integral_and_close",),
        dash="no attack is known that attains what dominates both directions",
    ),
    Fault(
        "accountant: Poisson batches composed for added records alone",
        "a record that is taken out is more exposed than one that is put in",
        (
            Edit(
                "privacy/loss/subsampled.py", "for way in ((1, 0), (0, 1))", "for way in ((0, 1),)"
            ),
        ),
        (SUBSAMPLED + "poisson_agrees_with_dp_accounting",),
        "records",
    ),
    Fault(
        "accountant: a ratio of variances taken for one of deviations",
        "graphs are said to protect better than they do, where sigma_cor is below sigma_cdp, and "
        "worse elsewhere",
        (
            Edit(
                "privacy/loss/accountant.py",
                "return (c / unit) ** 2 if",
                "return 2 * (c / unit) if",
            ),
        ),
        (ACCOUNTANT + "the_reported_epsilon_suffices_and_nothing_smaller_does",),
        "pendant user",
    ),
    # federation: real users
    Fault(
        "peers: same sign at both ends",
        "noise does not cancel, and the average model has that of all edges",
        (Edit("federation/terms.py", "multiples[low] = -multiple", "multiples[low] = multiple"),),
        (
            TRANSCRIPTS
            + "the_noise_on_the_wire_has_the_plans_covariance_and_not_two_thirds_or_three_halves_of_it",
        ),
        "peers",
        issue="same sign at both ends",
    ),
    Fault(
        "peers: a user's own key is the same in every step",
        "the difference of two steps is free of its own noise",
        (
            Edit(
                "federation/node.py",
                "self.random(32), edges, factor",
                "self.terms.digest[:31] + bytes([self.number]), edges, factor",
            ),
        ),
        (TRANSCRIPTS + "the_noise_on_the_wire_has_no_memory",),
        "peers",
        issue="noise reused over steps",
    ),
    Fault(
        "peers: all users have the same own noise",
        "whoever is a user knows everybody's own noise",
        (
            Edit(
                "federation/node.py",
                "random: Callable[[int], bytes] = os.urandom",
                "random: Callable[[int], bytes] = np.random.default_rng(0).bytes",
            ),
        ),
        (TRANSCRIPTS + "a_users_own_randomness_is_the_operating_systems",),
        "peers",
    ),
    Fault(
        "peers: a user's own key has 16 bits",
        "whoever tries all of them takes the user's own noise away",
        (
            Edit(
                "federation/node.py",
                "self.random(32), edges, factor",
                "self.random(2) + bytes(30), edges, factor",
            ),
        ),
        (CONTRACT + "peers_train_the_simulators_models_at_user_level",),
        "peers",
    ),
    Fault(
        "peers: all randomness follows from the public key",
        "whoever has the federation's file has everybody's own noise, batches and keys",
        (
            Edit(
                "federation/node.py",
                "        self._for_keys = self.random\n",
                "        self.random = np.random.default_rng(list(self.identity.public)).bytes\n"
                "        self._for_keys = self.random\n",
            ),
        ),
        (CONTRACT + "peers_train_the_simulators_models_at_user_level",),
        "peers",
    ),
    Fault(
        "peers: batches are drawn from a public generator",
        "everybody knows whose turn it is: sampling hides nobody",
        (
            Edit(
                "federation/local_gradient.py",
                "return secret_batch(self._records, size, sampling, self.random, self._common)",
                "drawn = self.__dict__.setdefault('_drawn', np.random.default_rng(0))\n"
                "        return secret_batch(self._records, size, sampling, drawn.bytes, self._common)",
            ),
        ),
        (CONTRACT + "peers_train_the_simulators_models_at_example_level[mlp-poisson]",),
        "peers, records",
    ),
    Fault(
        "peers: gradients up to two clips long are not clipped",
        "one user's data move its message twice as far as was accounted, if they know how",
        (
            Edit(
                "federation/local_gradient.py",
                "1.0 if length <= limit else limit / length",
                "1.0 if length <= 2 * limit else limit / length",
            ),
        ),
        (CONTRACT + "peers_train_the_simulators_models_at_user_level",),
        dash="neighbours refuse a model that no clipped user can reach, and the audit would wait",
    ),
    Fault(
        "peers: the gradient is added beside the grid",
        "the noise's law is right, and the last bits of a message are the gradient's own",
        (
            Edit(
                "federation/node.py",
                "        noised, edge_tags = grid.add_noise(gradient, self.random(32), edges, "
                "factor, True, own)\n",
                "        noised, edge_tags = grid.add_noise(0 * gradient, self.random(32), "
                "edges, 1.0, True, own)\n"
                "        noised += factor * gradient\n",
            ),
        ),
        (
            "auditing/test_peer_source.py::test_real_peers_are_attacked_by_their_messages_and_secrets",
        ),
        "peers",
    ),
    Fault(
        "peers: noise before the clip",
        "noise is clipped with the gradient, to a small part of what was planned",
        (
            Edit(
                "federation/node.py",
                "        if recipe.momentum:\n",
                "        noised *= min(1.0, self.terms.plan.exposure.clip / "
                "float(np.linalg.norm(noised)))\n"
                "        if recipe.momentum:\n",
            ),
        ),
        (
            TRANSCRIPTS
            + "the_noise_on_the_wire_has_the_plans_covariance_and_not_two_thirds_or_three_halves_of_it",
        ),
        "peers",
    ),
    Fault(
        "peers: the message is the model without noise",
        "everybody sends its gradient as it is",
        (
            Edit("federation/node.py", "edges, factor, True, own)", "edges, factor, False, own)"),
            Edit(
                "federation/node.py",
                "descend(self.model, noised, rate,",
                "descend(self.model, factor * gradient, rate,",
            ),
        ),
        (
            TRANSCRIPTS
            + "the_noise_on_the_wire_has_the_plans_covariance_and_not_two_thirds_or_three_halves_of_it",
        ),
        "peers",
    ),
    Fault(
        "peers: messages in float16",
        "noise is rounded apart from the gradient at its other end: it does not cancel, and low "
        "bits tell of gradients",
        (
            Edit(
                "federation/vector_kernels.py",
                "return out, bool(_move(model, direction, rate, keep, out))",
                "finite = bool(_move(model, direction, rate, keep, out))\n"
                "    return out.astype(np.float16).astype(out.dtype), finite",
            ),
        ),
        (TRANSCRIPTS + "the_noise_on_the_wire_is_whole_steps_of_the_grid",),
        dash="the audit's clock is beyond float16, so that its peers stop",
    ),
    Fault(
        "peers: no noise for the edge of an absent neighbour",
        "whoever can keep two users apart strips the one of the other's noise",
        (
            Edit(
                "federation/node.py",
                "edges = [(keys[j], self.multiples[j]) for j in order]",
                "here = self.peer.links\n"
                "        edges = [(keys[j], self.multiples[j] * here[j].is_open) for j in order]",
            ),
        ),
        (TRANSCRIPTS + "the_noise_of_an_absent_neighbours_edge_is_added_all_the_same",),
        dash="in an audit nobody is absent",
    ),
    Fault(
        "peers: clip after averaging",
        "one record moves a message by as much as a whole batch may",
        (
            Edit(
                "federation/local_gradient.py",
                "self._gradients.add_clipped_examples(",
                "self._gradients.add_clipped_means(",
            ),
        ),
        (CONTRACT + "peers_train_the_simulators_models_at_example_level[mlp-poisson]",),
        "peers, records",
        issue="clip after averaging",
    ),
    Fault(
        "peers: a record that is not finite stops the node",
        "a neighbour asks by its model whether one record is there, and sees the answer",
        (
            Edit(
                "learning/gradients/tiles.py",
                "row[k] = row.dtype.type(value) if factor[b, k] != 0 and abs(value) >= tiny else 0",
                "row[k] = row.dtype.type(value)",
            ),
            Edit(
                "learning/gradients/clip.py",
                "row[j] = row.dtype.type(value) if by != 0 and abs(value) >= tiny else 0",
                "row[j] = row.dtype.type(value)",
            ),
        ),
        (CLIP + "no_model_tells_by_stopping_a_node_whether_one_record_is_there[layers-0-example]",),
        dash="canaries are of moderate numbers",
    ),
    Fault(
        "peers: clips are not shorter by what is rounded after them",
        "the grid hides the planned shift, and not what sums are rounded by",
        (
            Edit("learning/gradients/tiles.py", "_ROUNDED = 2.0**-53", "_ROUNDED = 0.0"),
            Edit("learning/gradients/clip.py", SLACK, "return 0.0\n"),
        ),
        (
            CLIP + "one_record_more_moves_a_nodes_sum_by_its_clip_at_most",
            CLIP + "what_a_node_sends_of_its_gradient_is_never_longer_than_the_clip",
        ),
        dash="a law is measured to a percent",
    ),
    Fault(
        "peers: what a module drops out is known",
        "one record less gives its masks to the next: the gradients of all others move",
        (
            Edit(
                "federation/local_gradient.py",
                'np.frombuffer(self.random(4 * STATE_WORDS), "<u4")',
                'np.arange(STATE_WORDS, dtype="<u4")',
            ),
        ),
        (CLIP + "what_a_module_draws_at_a_node_is_drawn_from_the_operating_system",),
        dash="canaries drop nothing out",
    ),
    Fault(
        "peers: the message is made again after a crash",
        "two gradients under noise of one edge: their difference is bare",
        (
            Edit("federation/node.py", "made = peer.next_step > step", "made = False"),
            Edit(
                "net/ledger.py",
                "            if last is not None and step <= last:\n",
                "            if last is not None and step < last:\n",
            ),
            Edit(
                "net/ledger.py",
                "INSERT INTO messages VALUES",
                "INSERT OR REPLACE INTO messages VALUES",
            ),
        ),
        (
            CRASHES + "a_user_killed_anywhere_in_a_step_goes_on_with_the_message_it_had[after the "
            "last send]",
        ),
        dash=NO_CRASH,
        issue="message recomputed after a crash",
    ),
    Fault(
        "peers: the ledger is written after the message has left",
        "after a crash the step is made again, with another message",
        (
            Edit(
                "federation/node.py",
                "            peer.record(step, _bytes(message), tags, velocity)\n",
                "            from hashlib import sha256\n"
                "            peer._receipts.sign(step, sha256(_bytes(message)).digest())\n",
            ),
            Edit(
                "federation/node.py",
                "        if await self._gossip(peer, gossip):\n",
                "        done = await self._gossip(peer, gossip)\n"
                "        if step < self.steps and not made:\n"
                "            peer.record(step, _bytes(message), tags, velocity)\n"
                "        if done:\n",
            ),
        ),
        (
            CRASHES
            + "a_user_killed_anywhere_in_a_step_goes_on_with_the_message_it_had[between two "
            "sends]",
        ),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: what the noise's tables take of delta is not counted",
        "an epsilon for less delta than it needs",
        (
            Edit(
                "training/release_grid.py",
                "if grid.slack(plan.budget.epsilon) > left * (1 + 1e-9):",
                "if False:",
            ),
        ),
        ("training/test_private.py::test_beyond_the_tables_one_sentence_says_the_largest_epsilon",),
        dash="too little to be measured",
    ),
    Fault(
        "peers: only the dearest of several runs is counted",
        "a user's data pay again in every federation",
        (
            Edit(
                "privacy/composition.py",
                "return math.fsum(squares) if",
                "return max(squares, default=0.0) if",
            ),
        ),
        ("federation/test_spending.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: an unknown user counts as user 0",
        "an epsilon below that of a more exposed user",
        (
            Edit(
                "privacy/composition.py",
                "return worst.worst if run.number is None else float(worst.per_user[run.number])",
                "return float(worst.per_user[run.number or 0])",
            ),
        ),
        ("privacy/test_composition.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: Poisson batches cost a user what their mean size costs",
        "an epsilon without the batches that are larger",
        (
            Edit(
                "privacy/composition.py",
                'if exposure.sampling != "poisson" or set(_records(run)) == {exposure.batch_size}:',
                "if True:",
            ),
        ),
        ("privacy/test_composition.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: batches larger than the mean are left out",
        "as above, for a part of the sizes",
        (
            Edit(
                "privacy/loss/batch_sizes.py",
                "min(m, math.ceil(b + above))",
                "b",
            ),
        ),
        ("privacy/loss/test_batch_sizes.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: what tables add is not multiplied by e^epsilon",
        "many runs take more of delta than is counted",
        (
            Edit(
                "privacy/composition.py",
                "return (1 + math.exp(min(epsilon, 700.0))) * distance if distance else 0.0",
                "return 2 * distance",
            ),
        ),
        ("privacy/test_composition.py",),
        dash="too little to be measured",
    ),
    Fault(
        "ledger: an example in a user-level run moves by one clip",
        "half of the true mu in a question about examples",
        (
            Edit(
                "privacy/composition.py",
                "squares.append((2 * clip) ** 2 * run.all_steps * leverage)",
                "squares.append(clip**2 * run.all_steps * leverage)",
            ),
        ),
        ("privacy/test_composition.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: fixed batches as if an example were removed",
        "half of the true shift",
        (
            Edit(
                "privacy/loss/subsampled.py",
                '("fixed", "replace"): ((0, 2), (2, 0)),',
                '("fixed", "replace"): ((0, 1), (1, 0)),',
            ),
        ),
        ("privacy/test_composition.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: steps made again are paid once",
        "two messages of one step for the price of one",
        (
            Edit(
                "federation/spending.py",
                "entry.steps, entry.repeated, reserved",
                "entry.steps, 0, reserved",
            ),
        ),
        ("federation/test_spending.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: a run that may go on reserves nothing",
        "two runs begin under a limit that holds for one of them",
        (
            Edit(
                "federation/spending.py",
                "reserved = entry.ended is None if whole_plan is None else whole_plan",
                "reserved = bool(whole_plan)",
            ),
        ),
        ("federation/test_spending.py",),
        dash="an audit is one run",
    ),
    Fault(
        "ledger: the newest federation's delta is that of the limit",
        "whoever writes a file with a large delta lifts the limit of every member",
        (
            Edit(
                "federation/spending.py",
                "min(terms.delta, *map(delta_of, counted)) if counted else terms.delta",
                "terms.delta",
            ),
        ),
        (SPENDING + "no_delta_of_another_federation_lifts_a_limit_without_one",),
        dash=NO_FOLDER,
    ),
    Fault(
        "node: a batch may have more examples than the user has",
        "a node with few examples stops or crashes, and at user level their number is private",
        (
            Edit(
                "federation/local_gradient.py",
                "size and min(size, self._records)",
                "size",
            ),
        ),
        (
            "learning/gradients/test_clip.py::"
            "test_a_user_with_fewer_examples_than_a_batch_takes_all_of_them",
        ),
        dash="the law of the noise is right",
    ),
    # private runs: what leaves, and what is said of it
    Fault(
        "private run: a secret of 16 bits",
        "whoever tries all of them has all noise of all users",
        (
            Edit(
                "noise/private_noise.py",
                "self._value = random(32)",
                "self._value = random(2) + bytes(30)",
            ),
        ),
        (SECRET + "a_secret_is_256_bits_of_the_operating_system_and_is_not_written",),
        "private",
    ),
    Fault(
        "private run: the gradient is added beside the grid",
        "the noise's law is right, and the last bits of a message are the gradient's own",
        (
            Edit(
                "noise/private_noise.py",
                "round_with_dither(np.float64(row[k]) * scale,",
                "round_with_dither(0.0 * np.float64(row[k]) * scale,",
            ),
            Edit(
                "noise/private_noise.py",
                "messages[u, first + k] = unit * np",
                "messages[u, first + k] += unit * np",
            ),
        ),
        (
            SECRET
            + "a_message_is_the_rounded_gradient_plus_own_noise_plus_signed_noise_of_the_edges",
        ),
        "private",
    ),
    Fault(
        "private run: ties of the tables are not settled",
        "one word in a million has another law than the proof counts",
        (
            Edit(
                "noise/private_noise.py", "            if tied.any():\n", "            if False:\n"
            ),
        ),
        (SECRET + "ties_are_settled_in_every_kind_of_row",),
        dash="a law is measured to a percent",
    ),
    Fault(
        "grid: Poisson batches as far apart as replaced ones",
        "half of the rounding is not hidden, and the proof does not cover it",
        (
            Edit(
                "training/release_grid.py",
                '(1.0 if exposure.sampling == "poisson" else 2.0)',
                '(1.0 if exposure.relation == "add-remove" else 2.0)',
            ),
        ),
        (PRIVATE + "the_grid_hides_rounding_for_the_shift_of_one_unit",),
        dash="a step of the grid is a 655,440th of the noise",
    ),
    Fault(
        "own loop: the promise does not say that users' loops must be apart",
        "one optimizer for all users spends four times the epsilon that is printed",
        (
            Edit(
                "results/run.py",
                "if self.simulated or not by_loop:\n            return None",
                "if True:\n            return None",
            ),
        ),
        (
            "training/test_simulate.py::test_a_private_run_says_that_nothing_but_models_may_pass_between_users",
        ),
        dash=NO_FOLDER,
    ),
    Fault(
        "peers: a model is tried on a user's first records",
        "with a crafted start model neighbours learn from a refusal to join what a record is",
        (
            Edit(
                "learning/gradients/modules.py",
                "if self.exact:\n            return self._artificial_examples(count)",
                "if False:\n            return self._artificial_examples(count)",
            ),
        ),
        (CLIP + "no_model_tells_by_stopping_a_node_whether_one_record_is_there",),
        dash="an audit's models are not crafted",
    ),
    Fault(
        "private run: users are computed together with the largest shard",
        "one user's number of examples moves others' clipped gradients, by a clip where sums cancel",
        (
            Edit(
                "learning/batches.py",
                "return self.size is None and self.words is not None",
                "return False",
            ),
        ),
        (
            PRIVATE + "how_many_examples_a_user_has_changes_no_bit_of_anothers_gradient",
            PRIVATE + "one_record_more_moves_no_other_users_message_where_sums_cancel",
        ),
        dash=NO_CANCELLING,
    ),
    Fault(
        "private run: a private number decides who is computed together",
        "one user's number of examples changes the last bits of others' gradients",
        (
            Edit(
                "training/descent.py",
                "if self.share.secret is None:\n            examples =",
                "if True:\n            examples =",
            ),
        ),
        (PRIVATE + "who_is_computed_together_depends_on_public_numbers_alone",),
        dash=NO_CANCELLING,
    ),
    Fault(
        "private run: time decides the number of threads",
        "one user's data change the last bits of others' gradients",
        (
            Edit(
                "training/descent.py",
                "Threads(threads, values, timed=share.secret is None)",
                "Threads(threads, values)",
            ),
        ),
        (PRIVATE + "time_decides_nothing_in_a_private_run",),
        dash=NO_CANCELLING,
    ),
    Fault(
        "private run: its folder has a hash of the data",
        "whoever has two candidates for one record knows which it was",
        (
            Edit(
                "training/manifest.py",
                "simulated=False, task=task_summary(task),",
                'simulated=False, task=task_summary(task) | {"data": fingerprint(task)},',
            ),
        ),
        (
            PRIVATE
            + "two_tasks_that_differ_in_one_record_leave_folders_that_differ_in_nothing_but_noise",
        ),
        dash=NO_FOLDER,
    ),
    Fault(
        "private run: its folder has what was measured on private data",
        "a loss with sixteen digits is no differentially private figure",
        (Edit("training/simulation.py", "if name in public}", "if name in every}"),),
        (PRIVATE + "private_metrics_are_kept_apart_and_never_released",),
        dash=NO_FOLDER,
    ),
    Fault(
        "processes of a private run compare a hash of the data",
        "whoever listens between them, and has two candidates for one record, knows which it was",
        (
            Edit(
                "distributed/process_group.py",
                '{"data and model": share.fingerprint} if secret is None else',
                '{"data and model": share.fingerprint} if True else',
            ),
        ),
        (
            "distributed/test_process_group.py::test_of_a_private_run_nothing_travels_but_what_follows_from_the_integers_on_the_grid",
        ),
        dash="an audit looks at messages, not at what else travels",
    ),
    Fault(
        "a private run is begun again when processes are replaced",
        "what was sent before is sent again with other noise, and nobody counts it",
        (Edit("distributed/process_group.py", " or comm.is_restarted()", ""),),
        (
            "distributed/test_process_group.py::test_a_private_run_is_not_begun_again_by_processes_that_replace_others",
        ),
        dash="an audit looks at one run",
    ),
    Fault(
        "decor up begins new ledgers where --ledgers names no ledger",
        "a slip in a folder's name, and what the same data has spent is forgotten",
        (Edit("cli/up.py", "if len(new) == len(users):", "if False:"),),
        ("cli/test_up.py::test_a_renewed_federation_begins_no_new_ledgers_of_the_same_data",),
        dash="an audit looks at messages, not at what ledgers refuse",
    ),
    Fault(
        "decor up makes ledgers without their limit",
        "the same data may spend more than their owner allows for all runs together",
        (Edit("cli/up.py", "local.terms.name, allow)", "local.terms.name)"),),
        ("cli/test_up.py::test_a_limit_is_given_to_new_ledgers_and_lasts",),
        dash="an audit looks at messages, not at what ledgers refuse",
    ),
    Fault(
        "a run that stopped early promises the epsilon of its steps",
        "a rule that looks at messages makes delta several times as large as is said",
        (
            Edit(
                "results/run.py",
                "return self.guarantee_at()\n",
                "return self.guarantee_at(steps=self.steps_taken)\n",
            ),
        ),
        ("privacy/test_stopping.py",),
        dash=NO_FOLDER,
    ),
    Fault(
        "a stop by private figures is forgotten",
        "the number of steps tells about private data, and an epsilon is promised",
        (
            Edit(
                "training/simulation.py",
                "if self.saw_private_data and self.taken < self.steps:",
                "if False:",
            ),
        ),
        (PRIVATE + "a_rule_that_was_given_private_figures_leaves_no_guarantee",),
        dash=NO_FOLDER,
    ),
    Fault(
        "what the tables take of delta is not counted",
        "at a small delta an epsilon is promised that no table can keep",
        (
            Edit(
                "privacy/plan.py",
                "float(with_tables(exact.epsilon)), exact.everybody",
                "exact.epsilon, exact.everybody",
            ),
        ),
        (PRIVATE + "what_the_tables_take_of_delta_is_in_the_promise",),
        dash="an audit proves nothing at such a delta",
    ),
    Fault(
        "a folder of version 0.1 is taken for a private run",
        "floating-point noise of a 62-bit seed is called private",
        (
            Edit(
                "results/run.py",
                "        return self._distance is None\n",
                '        return self.manifest.get("seed") != "secret"\n',
            ),
        ),
        ("results/test_version_0_1.py",),
        dash=NO_FOLDER,
    ),
    Fault(
        "an environment variable decides what is saved",
        "a node's model is lost, and its budget is spent",
        (
            Edit(
                "results/run.py",
                "        if self.models or not self.elsewhere:\n",
                '        if __import__("os").environ.get("RANK", "0") == "0":\n',
            ),
        ),
        ("distributed/test_world.py",),
        dash=NO_FOLDER,
    ),
    Fault(
        "an audit without attacks has passed",
        "nothing was measured, and everybody believes that it was",
        (
            Edit("auditing/findings.py", "return right and bool(self.attacks)", "return right"),
            Edit("auditing/findings.py", "return bool(self.wires) and all(", "return all("),
        ),
        (
            "distributed/test_world.py::test_an_audit_that_measured_nothing_has_not_passed_and_says_so",
        ),
        dash="it is the audit itself",
    ),
    # net
    Fault(
        "peers: an old secret serves on while a new one is confirmed",
        "the neighbour may use the new one already: noise does not cancel",
        (
            Edit(
                "net/edge_keys.py",
                "if self._current is not None:\n            self._older",
                "if False:\n            self._older",
            ),
        ),
        (EDGE_KEYS + "all_orders_of_events_keep_one_key_for_one_message",),
        dash=NO_CRASH,
        issue="stale secret after restart",
    ),
    Fault(
        "peers: a key is drawn afresh while a secret is being confirmed",
        "the neighbour draws from the new secret: noise stays in the model",
        (
            Edit(
                "net/peer_barrier.py",
                "if link.keys.is_confirming:\n                # no key before",
                "if False:\n                # no key before",
            ),
        ),
        (PEER + "while_a_secret_is_being_confirmed_no_key_is_taken",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: exchanges are not numbered",
        "an old exchange can stand for a new one",
        (Edit("net/ledger.py", "new = (row[0] if row else 0) + 1", "new = 1"),),
        ("net/test_ledger.py::test_epochs_only_grow_even_after_a_crash",),
        dash=NO_CRASH,
        issue="stale secret after restart",
    ),
    Fault(
        "peers: the ledger takes a second message for a step",
        "the last thing between a bug and two messages of one step is gone",
        (
            Edit(
                "net/ledger.py",
                "            if last is not None and step <= last:\n",
                "            if last is not None and step < last:\n",
            ),
            Edit(
                "net/ledger.py",
                "INSERT INTO messages VALUES",
                "INSERT OR REPLACE INTO messages VALUES",
            ),
        ),
        ("net/test_ledger.py::test_no_step_has_a_second_message_nor_one_before_the_last",),
        dash=NO_CRASH,
        issue="message recomputed after a crash",
    ),
    Fault(
        "peers: own receipts are not compared in a greeting",
        "an old copy of the ledger makes second messages of steps that have one",
        (
            Edit(
                "net/peer_receiver.py",
                "if receipt is not None:\n                    self._check_own_receipt",
                "if False:\n                    self._check_own_receipt",
            ),
        ),
        (PEER + "a_greeting_with_an_own_receipt_that_the_ledger_lacks_ends_the_run_for_good",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: a second message of a step is accepted",
        "a doubled or restored ledger goes unnoticed by those who have the proof",
        (Edit("net/receipt_book.py", "known.digest != receipt.digest", "False"),),
        (BOOK + "a_second_digest_of_a_step_is_refused_and_both_signatures_are_logged",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: a second message passes under the receipt of the first",
        "two messages of a step with one signature: no proof, and nobody refuses them",
        (Edit("net/peer_receiver.py", "if link.first_copy != step and", "if False and"),),
        (PEER + "a_second_message_under_the_receipt_of_the_first_is_refused",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: who has proof of two messages keeps it",
        "a user whose ledger is doubled goes on, if no neighbour of its own has noticed",
        (
            Edit(
                "net/peer_receiver.py",
                "for other in self._links.values():\n                other.send(SignedReceipt(each))",
                "for other in ():\n                other.send(SignedReceipt(each))",
            ),
        ),
        (PEER + "a_second_message_of_a_user_that_is_no_neighbour_is_proven_and_passed_on",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: a key is given for a step whose receipt is known",
        "two messages under the keys of one step: only own noise is left between them",
        (
            Edit(
                "net/peer_receiver.py",
                "is_used = newest is not None and newest.step >= step",
                "is_used = False",
            ),
        ),
        (PEER + "no_key_is_given_for_a_step_of_which_a_receipt_is_known",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: a key is asked for before all neighbours have greeted",
        "the one that is away may have a message of this step under the same key",
        (
            Edit(
                "net/peer_barrier.py",
                "if all_greeted and not link.asked_for_key:",
                "if not link.asked_for_key:",
            ),
        ),
        (PEER + "no_key_is_asked_for_before_all_neighbours_have_greeted",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: a key serves twice if a neighbour offers it again",
        "the difference of two messages has no noise of that edge",
        (Edit("net/peer_receiver.py", " or self._ledger.has_key(key_id(key))", ""),),
        (PEER + "a_key_whose_id_is_in_the_ledger_is_not_used_again",),
        dash=NO_CRASH,
    ),
    Fault(
        "relay: callers that say nothing are never refused",
        "strangers hold a connection each for as long as they like, and users find none",
        (Edit("net/relay.py", 'self.refuse(side, "no_call")', "pass"),),
        (
            "net/test_relay.py::test_who_makes_no_call_in_time_is_refused_and_who_has_made_one_may_wait",
        ),
        dash=ONE_MACHINE,
    ),
    Fault(
        "relay: the code of users' models may be run there",
        "whoever writes a federation file runs code at the relay's operator",
        (
            Edit(
                "federation/relay_service.py",
                "Federation.read(path, run_code=False)",
                "Federation.read(path, run_code=True)",
            ),
        ),
        ("federation/test_relay_service.py::test_the_models_code_is_never_run_at_a_relay",),
        dash=ONE_MACHINE,
    ),
    Fault(
        "relay: a user waits at the first of its relays alone",
        "a second relay in the file does not help when the first one is down",
        (
            Edit(
                "net/connections.py",
                "for relay in self._reach.relays:",
                "for relay in self._reach.relays[:1]:",
            ),
        ),
        ("net/test_connections.py::test_users_of_a_relay_that_goes_down_meet_at_the_other_one",),
        dash=ONE_MACHINE,
    ),
    Fault(
        "relay: the first relay is waited at for ever",
        "two users that both have a relay, but not the same one, never meet",
        (Edit("net/connections.py", "None if is_only else RELAY_SECONDS", "None"),),
        (
            "net/test_connections.py::test_a_user_that_cannot_reach_the_first_relay_is_met_at_the_"
            "second",
        ),
        dash=ONE_MACHINE,
    ),
    Fault(
        "relay: a user listens to a relay that says wait without end",
        "a relay, or anyone on the way to it, stops all work of a user, also with other neighbours",
        (Edit("net/relay_protocol.py", "if not limit.allow():", "if False:"),),
        (
            "net/test_relay_protocol.py::test_a_relay_that_says_wait_without_end_does_not_stop_its_"
            "user",
        ),
        dash=ONE_MACHINE,
    ),
    Fault(
        "relay: a relay is called without the proxy",
        "a user whose only way out is a proxy takes no part",
        (Edit("net/reach.py", "connect_by(self.proxy, relay,", "connect_by(None, relay,"),),
        (
            "net/test_reach.py::test_a_user_whose_only_way_out_is_a_proxy_meets_its_neighbour_at_a_"
            "relay",
            "net/test_reach.py::test_a_relay_is_reached_by_a_real_proxy",
        ),
        dash=ONE_MACHINE,
    ),
    Fault(
        "addresses: a link-local address is dialled without its interface",
        "two users on one cable do not reach each other",
        (
            Edit(
                "net/addresses.py",
                "await loop.sock_connect(made, place)",
                "await loop.sock_connect(made, place[:2])",
            ),
        ),
        (
            "net/test_addresses.py::test_a_link_local_address_is_dialled_at_the_interface_that_it_names",
        ),
        dash=ONE_MACHINE,
    ),
    Fault(
        "node: a limit that nobody wrote into the ledger is not told",
        "the alert of a budget that is nearly spent never comes, and the next run is refused",
        (
            Edit(
                "federation/spending.py",
                "for limit in limits_in_force(ledger, terms, allowance)",
                "for limit in ledger_limits(ledger, terms)",
            ),
        ),
        ("federation/test_spending.py::test_the_limit_in_force_is_told_whoever_has_set_it",),
        dash=NO_FOLDER,
    ),
    Fault(
        "probe: another version of decor is not told",
        "members learn it on the first day of the run, when nodes refuse each other",
        (Edit("federation/probe.py", "if theirs.decor != own.decor:", "if False:"),),
        (PROBE + "other_versions_and_a_missing_torch_are_told_by_neighbours_and_at_home",),
        dash=ONE_MACHINE,
    ),
    Fault(
        "probe: a missing torch is not told",
        "a member finds out when its node does not start",
        (Edit("federation/probe.py", "if theirs.torch is None:", "if False:"),),
        (PROBE + "other_versions_and_a_missing_torch_are_told_by_neighbours_and_at_home",),
        dash=ONE_MACHINE,
    ),
    Fault(
        "peers: one user that lies proves progress",
        "a liar takes all others to the end of the run at once",
        (Edit("net/receipt_book.py", "return users > self._liars", "return users >= self._liars"),),
        (BOOK + "no_liar_moves_anyone_past_the_furthest_honest_user",),
        dash=NO_LIARS,
    ),
    Fault(
        "peers: a signature that was verified counts for another step",
        "one real receipt of each user is proof of any progress",
        (
            Edit(
                "net/receipt_book.py",
                "if self._verified.get(receipt.user) != receipt:",
                "if getattr(self._verified.get(receipt.user), 'signature', 0) != receipt.signature:",
            ),
        ),
        (BOOK + "a_signature_that_was_verified_counts_for_nothing_else",),
        dash=NO_LIARS,
    ),
    Fault(
        "peers: the ledger of another key is taken",
        "runs of one user's data are counted in another's ledger",
        (
            Edit(
                "net/ledger.py",
                "if identity is not None and identity not in self.facts.identities:",
                "if False:",
            ),
        ),
        ("net/test_ledger.py::test_the_ledger_of_another_key_is_refused",),
        dash=NO_FOLDER,
    ),
    Fault(
        "peers: a node makes messages as soon as it has started",
        "the neighbour that is still away may hold the receipt that the ledger lacks",
        (
            Edit(
                "federation/node.py",
                "await peer.wait_for_neighbours(terms.patience, needed)",
                "await peer.wait_for_neighbours(0.0, needed)",
            ),
        ),
        (CRASHES + "after_a_start_no_message_is_made_before_all_neighbours_have_greeted",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: a quorum is enough at a start",
        "those who hold the receipt that the ledger lacks may be the others",
        (
            Edit(
                "net/peer.py",
                "if not missing or (left <= 0 and here >= needed):",
                "if not missing or here >= needed:",
            ),
        ),
        (PEER + "after_a_start_all_neighbours_are_waited_for_and_after_patience_a_quorum",),
        dash=NO_CRASH,
    ),
    Fault(
        "peers: nobody is quarantined",
        "a neighbour that breaks the rules costs a timeout each time it is back",
        (
            Edit(
                "net/connections.py",
                "conn.quarantined_until = time.monotonic() + seconds",
                "conn.quarantined_until = time.monotonic()",
            ),
        ),
        (
            CONNECTIONS
            + "a_neighbour_that_breaks_the_rules_is_not_talked_to_each_time_twice_as_long",
        ),
        dash=NO_LIARS,
    ),
    Fault(
        "peers: a neighbour may connect as often as it likes",
        "handshakes keep a user from its work",
        (
            Edit(
                "net/connections.py",
                "if is_quarantined or not conn.calls.allow():",
                "if is_quarantined:",
            ),
        ),
        (CONNECTIONS + "a_neighbour_that_connects_too_often_is_not_answered_for_a_while",),
        dash=NO_LIARS,
    ),
    Fault(
        "peers: a neighbour may send as many short messages as it likes",
        "a flood keeps a user from its work, or keeps a silent liar alive",
        (Edit("net/peer_receiver.py", "if not link.words.allow():", "if False:"),),
        (PEER + "a_flood_of_short_messages_is_refused_and_a_few_are_not",),
        dash=NO_LIARS,
    ),
    Fault(
        "peers: models that no user can reach are averaged",
        "one message of a liar makes every model useless",
        (
            Edit(
                "federation/node.py",
                "if is_bounded(self._vector(values), largest):",
                "if is_bounded(self._vector(values)):",
            ),
        ),
        (
            "federation/test_terms.py::test_no_honest_model_exceeds_the_largest_parameter_and_a_"
            "larger_one_is_refused",
        ),
        dash=NO_LIARS,
    ),
    Fault(
        "peers: the state between rounds is not saved",
        "a node that is killed in a later round goes back to its message, and its model differs",
        (
            Edit(
                "federation/node.py",
                "            self._save_round(round_, now, before)\n",
                "",
            ),
        ),
        (
            "federation/test_restarts.py::test_a_killed_node_ends_with_the_model_of_an_"
            "uninterrupted_run[while mixing-1]",
        ),
        dash=NO_CRASH,
    ),
    Fault(
        "ledger: the final model is not in it",
        "a full disk or a crash at the end loses a model that is paid for",
        (
            Edit(
                "federation/node.py",
                "self.ledger.end(self.run, FINISHED, _bytes(self.model))",
                "self.ledger.end(self.run, FINISHED)",
            ),
        ),
        (CRASHES + "a_disk_that_is_full_at_the_end_does_not_cost_the_model",),
        dash=NO_CRASH,
    ),
    Fault(
        "ledger: others on the machine can read it",
        "they learn what was sent, when, and the final model",
        (
            Edit(
                "net/ledger.py",
                "os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600",
                "os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644",
            ),
        ),
        (LEDGER + "a_ledger_and_its_side_files_are_for_their_owner_alone_whatever_the_umask",),
        dash=NO_FOLDER,
    ),
    Fault(
        "ledger: a newer format is read as if it were known",
        "what it counts in another way is reported as less than was spent",
        (
            Edit(
                "net/ledger_reading.py",
                "            check_readable(db, path)\n",
                "",
            ),
        ),
        (LEDGER + "a_ledger_of_a_newer_version_is_refused",),
        dash=NO_FOLDER,
    ),
    Fault(
        "ledger: a limit is about the newest federation alone",
        "a later run that protects less breaks the promise to the users of earlier ones",
        (
            Edit(
                "federation/spending.py",
                "plans = [terms.plan, *map(plan_of, counted)]",
                "plans = [terms.plan]",
            ),
        ),
        (SPENDING + "a_limit_is_kept_for_every_question_that_a_run_was_planned_for",),
        dash=NO_FOLDER,
    ),
    Fault(
        "ledger: a limit is about earlier federations alone",
        "the new run's own promise is not kept",
        (
            Edit(
                "federation/spending.py",
                "plans = [terms.plan, *map(plan_of, counted)]",
                "plans = [*map(plan_of, counted)] or [terms.plan]",
            ),
        ),
        (SPENDING + "a_limit_is_kept_for_the_question_of_the_new_run_too",),
        dash=NO_FOLDER,
    ),
    Fault(
        "ledger: a run that was ended early may be begun again",
        "a ledger that was set back lacks its messages, and steps get second ones",
        (
            Edit(
                "federation/spending.py",
                "own = next((entry for entry in entries if entry.federation == terms.digest), None)",
                "own = next((e for e in entries if e.federation == terms.digest and e.why != "
                "ENDED_EARLY), None)",
            ),
        ),
        (SPENDING + "a_run_that_was_ended_early_never_goes_on",),
        dash=NO_FOLDER,
    ),
    Fault(
        "ledger: a run that was ended early takes no receipt any more",
        "messages that a restored ledger lacks are not counted when a neighbour shows them",
        (
            Edit(
                "net/ledger.py",
                "repeated = ? WHERE run = ? AND repeated < ?",
                "repeated = ? WHERE run = ? AND ended IS NULL AND repeated < ?",
            ),
        ),
        (LEDGER + "a_run_that_was_ended_early_still_takes_a_receipt_of_a_message_it_lacks",),
        dash=NO_FOLDER,
    ),
    Fault(
        "exit codes: a bug is worth a restart",
        "a supervisor repeats what may depend on data, and others see how often",
        (
            Edit(
                "federation/exit_codes.py",
                "TRANSIENT if isinstance(problem, TransientError) else NEEDS_A_PERSON",
                "NEEDS_A_PERSON if isinstance(problem, DecorError) else TRANSIENT",
            ),
            Edit(
                "federation/exit_codes.py",
                "import PrivacyStop, TransientError",
                "import DecorError, PrivacyStop",
            ),
        ),
        (
            "federation/test_exit_codes.py::test_only_listed_causes_are_worth_a_restart",
            "cli/test_main.py::test_an_unknown_exception_of_any_command_is_shown_and_not_worth_a_"
            "restart",
        ),
        dash=NO_FOLDER,
    ),
    Fault(
        "exit codes: a stop for privacy is like any other",
        "a node whose ledger is an old one is taken for one with wrong input",
        (
            Edit(
                "federation/exit_codes.py",
                "if isinstance(problem, PrivacyStop):",
                "if False:",
            ),
        ),
        ("federation/test_exit_codes.py::test_only_listed_causes_are_worth_a_restart",),
        dash=NO_FOLDER,
    ),
    Fault(
        "renewal: any run folder is taken for the last model",
        "a model that no ledger accounts for is sent to all members",
        (
            Edit(
                "federation/renewal.py",
                'if run.manifest.get("federation") != old.digest.hex() or run.simulated:',
                "if run.simulated:",
            ),
        ),
        (RENEWAL + "a_model_that_no_ledger_accounts_for_is_refused",),
        dash=NO_FOLDER,
    ),
    Fault(
        "renewal: a simulation is taken for the last model",
        "whoever knows its seed subtracts the noise",
        (
            Edit(
                "federation/renewal.py",
                "!= old.digest.hex() or run.simulated:",
                "!= old.digest.hex():",
            ),
        ),
        (RENEWAL + "a_model_that_no_ledger_accounts_for_is_refused",),
        dash=NO_FOLDER,
    ),
    Fault(
        "ledger: a run that is given up for a new key is ended",
        "messages that a restored ledger lacks are not counted",
        (
            Edit(
                "net/ledger.py",
                "        with self._translate_errors(), self._transaction():\n"
                "            self._db.execute(\n"
                '                "INSERT OR IGNORE INTO identities',
                "        for entry in unfinished:\n"
                '            self.end(entry.run, "given up")\n'
                "        with self._translate_errors(), self._transaction():\n"
                "            self._db.execute(\n"
                '                "INSERT OR IGNORE INTO identities',
            ),
        ),
        (
            "cli/test_ledger_setup.py::test_a_run_that_is_given_up_for_a_new_key_goes_on_"
            "reserving_its_plan",
        ),
        dash=NO_FOLDER,
    ),
    Fault(
        "own loop: a simulated difference is not clipped",
        "one user's data move a message as far as its training goes",
        (
            Edit(
                "training/simulate.py",
                "add_clipped([noised], [gradients], one * self.plan.exposure.clip, one)",
                "noised.add_(gradients)",
            ),
        ),
        (
            "training/test_simulate.py::test_no_message_moves_by_more_than_the_clip_whatever_is_"
            "shared",
        ),
        dash=OWN_LOOPS,
    ),
    Fault(
        "own loop: a member's difference is not clipped",
        "one user's data move a message as far as its training goes",
        (
            Edit(
                "federation/loop_updates.py",
                "return clip_factor(update, self._clip)",
                "return update, 1.0",
            ),
        ),
        (LOOP + "no_difference_is_longer_than_the_clip_whatever_is_shared",),
        dash=OWN_LOOPS,
    ),
    Fault(
        "own loop: a step is shared twice",
        "a second model of a step stands in for the next step's",
        (
            Edit(
                "training/turn.py",
                "if self._is_shared:\n            raise",
                "if False:\n            raise",
            ),
        ),
        (TURN + "what_is_shared_is_given_once_and_the_model_is_a_copy",),
        dash=OWN_LOOPS,
    ),
    Fault(
        "own loop: example level is taken",
        "one example moves what a loop trains as far as all of a user's data",
        (Edit("training/turn.py", 'if exposure.unit != "user":', "if False:"),),
        (LOOP + "example_level_is_refused",),
        dash=OWN_LOOPS,
    ),
    Fault(
        "own loop: buffers that training has changed are taken",
        "a model that is shared has statistics that no noise covers",
        (
            Edit(
                "learning/gradients/flat_model.py", "if not _same(value, fixed[name]):", "if False:"
            ),
        ),
        (
            "learning/gradients/test_flat_model.py::test_another_form_and_changed_buffers_are_"
            "refused",
        ),
        dash=OWN_LOOPS,
    ),
    Fault(
        "own loop: a warning comes before what is shared",
        "where warnings are errors, a model that is not finite stops the node, and neighbours see it",
        (
            Edit(
                "training/turn.py",
                "self._is_shared = True\n        self._give(shared)\n",
                "self._is_shared = True\n",
            ),
            Edit(
                "training/turn.py",
                'self._warn("a model that is not finite was shared, and counts as zero")\n',
                'self._warn("a model that is not finite was shared, and counts as zero")\n'
                "        self._give(shared)\n",
            ),
        ),
        (TURN + "a_model_that_is_not_finite_is_given_before_the_warning",),
        dash=OWN_LOOPS,
    ),
    Fault(
        "own tables: records without a label are dropped where their number is public",
        "neighbours learn from a refusal to join that a label is missing",
        (
            Edit(
                "federation/member_data.py",
                "wanted = records if declared is not None else max(1, prepared.counts.used)",
                "wanted = max(1, prepared.counts.used)",
            ),
        ),
        (TABLES + "where_the_number_of_records_is_public_it_does_not_depend_on_labels",),
        dash=NO_FOLDER,
    ),
    Fault(
        "own tables: a user without a known label cannot join",
        "neighbours learn it",
        (
            Edit(
                "federation/member_data.py",
                "else max(1, prepared.counts.used)",
                "else prepared.counts.used",
            ),
        ),
        (TABLES + "a_user_without_a_known_label_joins_all_the_same",),
        dash=NO_FOLDER,
    ),
    Fault(
        "federation: columns are not in the digest",
        "users whose inputs mean different things train together, and the budget is spent on it",
        (
            Edit(
                "federation/federation.py",
                '            sections["data"] = self.data.to_json()',
                "            pass",
            ),
        ),
        (
            "federation/test_federation.py::test_every_field_changed_in_one_place_changes_its_own_"
            "digest_and_the_federations",
        ),
        dash=NO_FOLDER,
    ),
    Fault(
        "predict: a folder's code runs without being trusted",
        "whoever sends a run folder runs code on the reader's machine",
        (Edit("results/run.py", "if code is not None and not trust_code:", "if False:"),),
        ("cli/test_predict.py::test_own_code_is_imported_only_if_it_is_trusted",),
        dash=NO_FOLDER,
    ),
    Fault(
        "page to sign: a ledger's total leaves out what runs may still send",
        "an owner signs for less than the running plans may cost",
        (
            Edit(
                "cli/sign_pages.py",
                'bound = f"is at most {epsilon_text(total.promised)}, at',
                'bound = f"is at most {epsilon_text(total.so_far)}, at',
            ),
        ),
        ("cli/test_report.py::test_a_run_that_has_not_ended_counts_with_its_whole_plan",),
        dash=NO_FOLDER,
    ),
    Fault(
        "page to sign: adversaries whose epsilon is unknown are left out",
        "members take the absence of an adversary for safety from it",
        (
            Edit(
                "results/build_sign_page.py",
                'cells += [(adversary.sentence, "unknown", "–") for adversary in unknown]',
                "pass",
            ),
        ),
        ("cli/test_report.py::test_code_of_a_federation_file_is_not_run",),
        dash=NO_FOLDER,
    ),
    Fault(
        "page to sign: one record is called all data of a user",
        "who signs believes that everything of a patient is protected",
        (
            Edit(
                "results/build_sign_page.py",
                '"all data of one user" if guarantee.unit == "user" else f"one record of',
                '"all data of one user" if guarantee.unit else f"one record of',
            ),
        ),
        (
            "results/test_build_sign_page.py::test_at_example_level_a_page_says_that_one_record_is_"
            "protected",
        ),
        dash=NO_FOLDER,
    ),
    Fault(
        "page to sign: a federation file's code is run",
        "whoever sends a file runs code on the reader's machine",
        (Edit("cli/sign_pages.py", "run_code=options.trust_code)", "run_code=True)"),),
        ("cli/test_report.py::test_code_of_a_federation_file_is_not_run",),
        dash=NO_FOLDER,
    ),
    Fault(
        "features: images are normalised together",
        "features of one example change with all others', so a step moves by more than its clip",
        (
            Edit(
                "learning/features.py",
                "    return features\n\n\nclass",
                "    return features - features.mean(0)\n\n\nclass",
            ),
        ),
        (FEATURES + "changing_or_removing_an_image_changes_no_other_row_by_a_bit",),
        dash="an audit makes examples itself",
    ),
    Fault(
        "simulator: settings that share a product have the clip of the first",
        "examples of the other plans add more than their clip",
        (
            Edit(
                "learning/gradients/dense_layers.py",
                "factor = factors(norms, limit.unsqueeze(1))",
                "factor = factors(norms, limit[:, :1].unsqueeze(1))",
            ),
        ),
        (
            GRADIENTS
            + "settings_of_large_first_layers_are_those_of_small_ones[example-multinomial]",
        ),
        dash="an audit has one setting",
    ),
    Fault(
        "losses of an example: plain steps beside sampled ones are left out",
        "a run or release without sampling costs nothing beside a sampled one",
        (Edit("privacy/loss/example_losses.py", "if mu > 0:", "if False:"),),
        (
            "privacy/loss/test_example_losses.py::test_plain_steps_beside_sampled_ones_are_sampled_steps_of_rate_one",
        ),
        dash="an audit is one run",
    ),
    Fault(
        "losses of an example: many kinds of steps are merged downwards",
        "an epsilon below the truth once noise has changed often",
        (
            Edit(
                "privacy/loss/example_losses.py",
                "math.floor(math.log(each.noise_multiplier) * precision)",
                "math.ceil(math.log(each.noise_multiplier) * precision)",
            ),
            Edit("privacy/loss/example_losses.py", "z = min(z, each.noise_multiplier)", "pass"),
        ),
        ("privacy/loss/test_example_losses.py::test_many_kinds_of_steps_are_merged_upwards",),
        dash="an audit is one run",
    ),
    Fault(
        "opacus: the rate of batches of fixed size is rounded down",
        "an epsilon for smaller batches than those drawn",
        (
            Edit(
                "doors/opacus.py",
                "return self.examples // self.batch_size",
                "return -(-self.examples // self.batch_size)",
            ),
        ),
        (OPACUS + "the_rate_of_batches_that_do_not_divide_the_examples_is_rounded_up",),
        dash=OTHERS,
    ),
    Fault(
        "opacus: batches of fixed size are accounted for like Poisson batches",
        "a fifth of the true epsilon",
        (
            Edit(
                "doors/opacus.py",
                '"decor-fixed", "fixed", "replace"',
                '"decor-fixed", "poisson", "add-remove"',
            ),
        ),
        (OPACUS + "a_training_with_batches_of_fixed_size_has_our_epsilon",),
        dash=OTHERS,
    ),
    Fault(
        "opacus: batches that are added up count as one",
        "an example in two of them adds two clips",
        (Edit("doors/opacus.py", "if optimizer.accumulated_iterations != 1:", "if False:"),),
        (OPACUS + "batches_that_are_added_up_are_refused",),
        dash=OTHERS,
    ),
    Fault(
        "opacus: adaptive clipping is accounted for like clipping",
        "a fifth of the true epsilon",
        (Edit("doors/opacus.py", "if isinstance(optimizer, AdaClipDPOptimizer):", "if False:"),),
        (OPACUS + "adaptive_clipping_is_refused",),
        dash=OTHERS,
    ),
    Fault(
        "opacus: batches of one size pass for Poisson batches",
        "shuffled epochs get an epsilon that no theorem gives them",
        (Edit("doors/opacus.py", "if most > 1 and", "if False and"),),
        (OPACUS + "batches_of_one_size_are_not_taken_for_poisson_batches",),
        dash=OTHERS,
    ),
    Fault(
        "opacus: shuffled batches pass for fresh ones",
        "as above",
        (
            Edit(
                "doors/opacus.py",
                "if FixedSizeAccountant._steps >= FixedSizeBatches.drawn:",
                "if False:",
            ),
        ),
        (OPACUS + "fixed_size_is_only_for_batches_that_are_drawn_afresh",),
        dash=OTHERS,
    ),
    Fault(
        "opacus: batches of fixed size are the same each time",
        "no amplification by sampling: an example is in every batch",
        (
            Edit(
                "doors/opacus.py",
                "order = torch.randperm(self.examples, generator=self.generator)",
                "order = torch.arange(self.examples)",
            ),
        ),
        (OPACUS + "batches_of_fixed_size_are_uniform_and_fresh",),
        dash=OTHERS,
    ),
    Fault(
        "opacus: a step without noise costs nothing",
        "an epsilon for a gradient in the clear",
        (Edit("doors/opacus.py", "squares.append(math.inf)", "squares.append(0.0)"),),
        (OPACUS + "nothing_is_promised_without_noise_and_nonsense_is_refused",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: a record that is replaced moves a sum by one clip",
        "half of the true mu; its own Rényi accountant does so",
        (Edit("doors/dp_accounting.py", "shift = 2 if self._replaces else 1", "shift = 1"),),
        (DP_ACCOUNTING + "gaussians_are_those_of_40_digits",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: a batch of fixed size is a Poisson batch",
        "2.2 where 2.99 is proved",
        (
            Edit(
                "doors/dp_accounting.py",
                'found.add_sampled(z, size / records, "fixed", "replace", count)',
                'found.add_sampled(z, size / records, "poisson", self._relation, count)',
            ),
        ),
        (DP_ACCOUNTING + "fixed_size_is_2_99_where_dp_accounting_says_5_54",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: a composition of many counts once",
        "an epsilon of one step for a run",
        (
            Edit(
                "doors/dp_accounting.py",
                "self._collect(event.event, count * event.count, found)",
                "self._collect(event.event, count, found)",
            ),
        ),
        (
            DP_ACCOUNTING + "vectors_of_the_tightest_accountant_of_dp_accounting",
            DP_ACCOUNTING + "fixed_size_is_2_99_where_dp_accounting_says_5_54",
            DP_ACCOUNTING + "queries_on_one_sample_are_one_query",
            DP_ACCOUNTING + "runs_of_several_plans_are_composed_as_a_ledger_composes_them",
        ),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: several queries on one sample count as one",
        "less than each of them costs",
        (
            Edit(
                "doors/dp_accounting.py",
                "math.fsum(n / min(z, _MOST) ** 2 for z, n in parts)",
                "max(1 / min(z, _MOST) ** 2 for z, n in parts)",
            ),
        ),
        (DP_ACCOUNTING + "queries_on_one_sample_are_one_query",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: a run that is repeated counts once",
        "a user's data pay once for all runs of a plan",
        (Edit("doors/dp_accounting.py", "steps=count * exposure.steps", "steps=exposure.steps"),),
        (DP_ACCOUNTING + "a_run_has_the_epsilon_of_its_plan",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: a run that is repeated beside others counts once",
        "as above",
        (
            Edit(
                "doors/dp_accounting.py", "repeated=(count - 1) * plan.exposure.steps", "repeated=0"
            ),
        ),
        (DP_ACCOUNTING + "runs_of_several_plans_are_composed_as_a_ledger_composes_them",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: runs against two adversaries get the first's epsilon",
        "colluders of the second are forgotten",
        (Edit("doors/dp_accounting.py", "if one != other:", "if False:"),),
        (DP_ACCOUNTING + "what_cannot_be_accounted_for_is_named_and_leaves_nothing_behind",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: an adaptive query in a replaced Poisson sample is accounted for",
        "an epsilon without a proof",
        (
            Edit(
                "doors/dp_accounting.py",
                "if self._replaces and not isinstance(event.event, dp_event.GaussianDpEvent):",
                "if False:",
            ),
        ),
        (DP_ACCOUNTING + "what_cannot_be_accounted_for_is_named_and_leaves_nothing_behind",),
        dash=OTHERS,
    ),
    Fault(
        "dp-accounting: an event that fails in its middle is composed up to there",
        "what was refused is counted in part, and the accountant goes on",
        (
            Edit(
                "doors/dp_accounting.py",
                "found = _Events()\n        try:",
                "found = self._events\n        try:",
            ),
        ),
        (DP_ACCOUNTING + "what_cannot_be_accounted_for_is_named_and_leaves_nothing_behind",),
        dash=OTHERS,
    ),
    Fault(
        "launchers: a node that stopped for privacy is started again",
        "what an operator or a neighbour has stopped goes on by itself",
        (
            Edit(
                "doors/site_node.py",
                "if code != TRANSIENT or not left:",
                "if code in (DONE, INCOMPLETE) or not left:",
            ),
        ),
        (SITE_NODE + "a_budget_that_is_spent_is_never_tried_again",),
        dash=OTHERS,
    ),
    Fault(
        "launchers: a server is told more than the list of public facts",
        "what a node prints for its own operator leaves the site",
        (Edit("doors/site_node.py", '_PUBLIC = ("user",', '_PUBLIC = ("ledger", "user",'),),
        (SITE_NODE + "nodes_that_are_launched_give_the_numbers_of_plain_nodes",),
        dash=OTHERS,
    ),
    Fault(
        "launchers: a job may start what the site has not agreed to",
        "a server chooses what the data's budget is spent on",
        (
            Edit(
                "doors/site_node.py",
                "table = tables.get(federation)",
                "table = tables.get(federation, next(iter(tables.values()), None))",
            ),
        ),
        (SITE_NODE + "a_job_cannot_choose_what_the_site_has_not_set_up",),
        dash=OTHERS,
    ),
    Fault(
        "launchers: an abort leaves the node at work",
        "it goes on spending after everyone was told that it has stopped",
        (Edit("doors/site_node.py", "is None and not is_aborted():", "is None:"),),
        (SITE_NODE + "a_node_that_is_aborted_stops_as_on_sigterm_and_goes_on_later",),
        dash=OTHERS,
    ),
)
