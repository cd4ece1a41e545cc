"""The accountants inside the real Opacus: training loops, its search for noise, its checkpoints."""

import math
from dataclasses import replace

import pytest

opacus = pytest.importorskip("opacus", reason="opacus is not installed: pip install '.[doors]'")
torch = pytest.importorskip("torch")

from opacus.accountants import create_accountant  # noqa: E402
from opacus.schedulers import ExponentialNoise  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402
from scipy.stats import binom, chi2  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import decor  # noqa: E402
from decor.doors import opacus as door  # noqa: E402
from decor.errors import InputError  # noqa: E402
from decor.privacy.loss import gaussian  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha"),
]

EXAMPLES, BATCH, DELTA = 300, 20, 1e-5
RATE = 1 / 15
door.register()


def data(examples=EXAMPLES):
    X = torch.randn(examples, 5, generator=torch.Generator().manual_seed(3))
    return TensorDataset(X, (X[:, 0] > 0).long())


def fixed_size(examples=EXAMPLES, batch_size=BATCH):
    return DataLoader(data(examples), batch_sampler=door.FixedSizeBatches(examples, batch_size))


class Training:
    """What a person writes around Opacus."""

    def __init__(self, accountant, loader=None, noise=1.1, epsilon=None, epochs=3, **options):
        torch.manual_seed(5)
        module = nn.Linear(5, 2)
        self.epochs = epochs
        self.engine = opacus.PrivacyEngine(accountant=accountant)
        options |= {
            "module": module,
            "optimizer": torch.optim.SGD(module.parameters(), lr=0.1),
            "data_loader": loader or DataLoader(data(), batch_size=BATCH, shuffle=True),
            "max_grad_norm": 1.0,
        }
        if epsilon is None:
            made = self.engine.make_private(noise_multiplier=noise, **options)
        else:
            made = self.engine.make_private_with_epsilon(
                target_epsilon=epsilon, target_delta=DELTA, epochs=epochs, **options
            )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.loss = made[2] if len(made) == 4 else nn.functional.cross_entropy
        self.steps = 0

    def step(self, X, y):
        self.optimizer.zero_grad()
        self.loss(self.model(X), y).backward()
        self.optimizer.step()

    def run(self):
        for _ in range(self.epochs):
            for X, y in self.loader:
                self.step(X, y)
                self.steps += 1
        return self

    @property
    def epsilon(self):
        return self.engine.get_epsilon(DELTA)


def plan(z, steps, **exposure):
    """The same noise, as DECOR says it: of one user, against everyone else."""
    exposure = decor.Exposure(
        clip=1.0, steps=steps, unit="example", batch_size=BATCH, records=EXAMPLES, **exposure
    )
    return decor.NoisePlan(decor.complete(2), exposure, decor.Adversary.everyone(), z / BATCH, 0.0)


def of(mechanism, history):
    accountant = create_accountant(mechanism)
    accountant.history = list(history)
    return accountant.get_epsilon(DELTA)


# --- a training loop, and what it says


def test_a_poisson_training_has_our_epsilon_between_what_opacus_itself_says():
    training = Training("decor").run()
    accountant = training.engine.accountant
    assert isinstance(accountant, door.PoissonAccountant)
    assert len(accountant) == training.steps == 45
    assert accountant.history == [(1.1, RATE, 45)]
    ours = plan(1.1, 45).guarantee(DELTA).epsilon
    assert training.epsilon == pytest.approx(ours, rel=1e-9)
    # "prv" says an upper end of an interval of some hundredths, "rdp" a bound
    assert of("prv", accountant.history) - 0.03 < ours < of("prv", accountant.history)
    assert ours < 0.9 * of("rdp", accountant.history)


def test_a_training_with_batches_of_fixed_size_has_our_epsilon():
    training = Training("decor-fixed", fixed_size(), poisson_sampling=False).run()
    assert training.engine.accountant.history == [(1.1, RATE, 45)]
    ours = plan(1.1, 45, sampling="fixed").guarantee(DELTA)
    assert ours.relation == training.engine.accountant.relation == "replace"
    assert training.epsilon == pytest.approx(ours.epsilon, rel=1e-9)


def test_the_rate_of_batches_that_do_not_divide_the_examples_is_rounded_up():
    examples = 319  # 15.95 batches of 20
    training = Training("decor-fixed", fixed_size(examples), poisson_sampling=False, epochs=1).run()
    ((_, rate, steps),) = training.engine.accountant.history
    assert (rate, steps) == (1 / 15, 15) and rate > BATCH / examples
    true = replace(plan(1.1, 15).exposure, sampling="fixed", relation="replace", records=examples)
    exact = replace(plan(1.1, 15), exposure=true).guarantee(DELTA).epsilon
    assert exact < training.epsilon


@pytest.mark.parametrize("name", ["decor", "decor-fixed"])
def test_the_noise_for_an_epsilon_is_found_with_our_accountant(name):
    fixed = {"poisson_sampling": False, "loader": fixed_size()} if name == "decor-fixed" else {}
    training = Training(name, epsilon=3.0, **fixed).run()
    assert 2.98 < training.epsilon <= 3.0
    sampling = {"sampling": "fixed"} if fixed else {}
    z = training.optimizer.noise_multiplier
    assert training.epsilon == pytest.approx(
        plan(z, 45, **sampling).guarantee(DELTA).epsilon, rel=1e-9
    )
    if not fixed:
        assert z < 0.97 * Training("rdp", epsilon=3.0).optimizer.noise_multiplier


def test_noise_that_changes_is_composed():
    training = Training("decor", epochs=1)
    schedule = ExponentialNoise(training.optimizer, gamma=0.9)
    for _ in range(3):
        training.run()
        schedule.step()
    levels = [1.1, 1.1 * 0.9, 1.1 * 0.9**2]
    ours = decor.Phases(plan(z, 15) for z in levels).guarantee(DELTA).epsilon
    assert training.epsilon == pytest.approx(ours, rel=1e-9)
    # more levels than are composed one by one: a little more, never less
    many = [(1.1 + 0.001 * k, RATE, 1) for k in range(60)]
    more, less = (of("decor", [(1.1 + 0.059 * k, RATE, 60)]) for k in (0, 1))
    assert less < of("decor", many) < more


@pytest.mark.parametrize("name", ["decor", "decor-fixed"])
def test_clipping_without_gradients_of_examples_is_counted_alike(name):
    fixed = {"poisson_sampling": False, "loader": fixed_size()} if name == "decor-fixed" else {}
    ghost = {"grad_sample_mode": "ghost", "criterion": nn.CrossEntropyLoss()}
    assert Training(name, **ghost, **fixed).run().engine.accountant.history == [(1.1, RATE, 45)]


@pytest.mark.parametrize("name", ["decor", "decor-fixed"])
def test_a_batch_that_comes_in_parts_is_one_step_and_parts_of_one_size_are_no_reason_to_stop(name):
    fixed = {"poisson_sampling": False, "loader": fixed_size()} if name == "decor-fixed" else {}
    training = Training(name, **fixed)
    for _ in range(3):
        with BatchMemoryManager(
            data_loader=training.loader, max_physical_batch_size=1, optimizer=training.optimizer
        ) as parts:
            for X, y in parts:
                training.step(X, y)
    assert training.engine.accountant.history == [(1.1, RATE, 45)]


def test_a_checkpoint_has_the_history_and_later_steps_are_not_in_it(tmp_path):
    training = Training("decor", epochs=1).run()
    training.engine.save_checkpoint(
        path=tmp_path / "saved", module=training.model, optimizer=training.optimizer
    )
    before = training.epsilon
    other = Training("decor", epochs=1)
    other.engine.load_checkpoint(
        path=tmp_path / "saved", module=other.model, optimizer=other.optimizer
    )
    assert other.epsilon == before
    state = other.engine.accountant.state_dict()
    third = door.PoissonAccountant()
    third.load_state_dict(state)
    third.step(noise_multiplier=1.1, sample_rate=RATE)
    assert state["history"] == [(1.1, RATE, 15)] and third.history == [(1.1, RATE, 16)]
    with pytest.raises(ValueError, match="mechanism decor-fixed"):
        door.FixedSizeAccountant().load_state_dict(state)


# --- what the interface cannot say


@pytest.mark.parametrize("drop_last", [True, False])
def test_batches_of_one_size_are_not_taken_for_poisson_batches(drop_last):
    loader = DataLoader(data(), batch_size=BATCH, shuffle=True, drop_last=drop_last)
    with pytest.raises(InputError, match="13 batches in a row had 20 examples"):
        Training("decor", loader, poisson_sampling=False).run()


def test_real_poisson_batches_never_look_like_batches_of_one_size():
    """The bound on the probability of a size, for every mean: 1 / sqrt(2 e n p (1-p))."""
    for n in (1, 2, 5, 30, 300, 60_000):
        for p in (1e-6, 1e-3, 0.02, 0.3, 0.5, 0.9):
            most = binom.pmf(math.floor((n + 1) * p), n, p)
            assert most <= 1 / math.sqrt(2 * math.e * n * p * (1 - p))
    # full batches are Poisson batches of rate 1, and batches of one example are not rare
    for loader in (DataLoader(data(), batch_size=EXAMPLES), DataLoader(data(30), batch_size=1)):
        training = Training("decor", loader, epochs=40).run()
        assert len(training.engine.accountant) == training.steps
    of_full_batches = gaussian.epsilon(math.sqrt(40) / 10, DELTA)
    assert of("decor", [(10.0, 1.0, 40)]) == pytest.approx(of_full_batches, rel=1e-9)


def test_fixed_size_is_only_for_batches_that_are_drawn_afresh():
    door.FixedSizeAccountant._steps = door.FixedSizeBatches.drawn
    shuffled = DataLoader(data(), batch_size=BATCH, shuffle=True)
    with pytest.raises(InputError, match="FixedSizeBatches"):
        Training("decor-fixed", shuffled, poisson_sampling=False).run()
    # 1 / len is the rate of 18.75 examples: the last batch of an epoch is a short one
    list(door.FixedSizeBatches(1000, 1))
    short = DataLoader(data(), batch_size=21, shuffle=True)
    with pytest.raises(InputError, match="21 examples where the sampling rate 0.0666667 is that"):
        Training("decor-fixed", short, poisson_sampling=False).run()


@pytest.mark.parametrize("name", ["decor", "decor-fixed"])
def test_batches_that_are_added_up_are_refused(name):
    loader = fixed_size()
    training = Training(name, loader, poisson_sampling=False, epochs=1)
    batches = iter(training.loader)
    for _ in range(2):
        X, y = next(batches)
        nn.functional.cross_entropy(training.model(X), y).backward()
    with pytest.raises(InputError, match="2 batches were added up"):
        training.optimizer.step()
    assert len(training.engine.accountant) == 0


@pytest.mark.parametrize("name", ["decor", "decor-fixed"])
def test_adaptive_clipping_is_refused(name):
    """Opacus publishes how many examples were not clipped as well, with less noise than it counts:
    45 steps with these settings are epsilon 12.6 and more, where the accountant said 2.77.
    """
    adaptive = {
        "clipping": "adaptive",
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.1,
        "unclipped_num_std": 0.56,
    }
    fixed = name == "decor-fixed"
    training = Training(
        name, fixed_size() if fixed else None, poisson_sampling=not fixed, **adaptive
    )
    with pytest.raises(InputError, match="adaptive clipping"):
        training.run()
    assert len(training.engine.accountant) == 0


def test_batches_of_fixed_size_are_uniform_and_fresh():
    draws = door.FixedSizeBatches(12, 5, torch.Generator().manual_seed(1))
    assert len(draws) == 2
    batches = [batch for _ in range(3000) for batch in draws]
    assert all(len(set(batch)) == 5 and set(batch) <= set(range(12)) for batch in batches)
    # pairs of examples within a batch, and one example in consecutive batches
    pairs = torch.zeros(12, 12)
    for batch in batches:
        pairs[torch.tensor(batch)[:, None], torch.tensor(batch)] += 1
    upper = pairs[torch.triu(torch.ones(12, 12), 1) == 1]
    expected = len(batches) * 20 / 132
    assert float(((upper - expected) ** 2 / expected).sum()) < chi2.ppf(0.999, 65)
    kept = [0 in a and 0 in b for a, b in zip(batches, batches[1:], strict=False)]
    assert abs(sum(kept) / len(kept) - (5 / 12) ** 2) < 0.02
    for nonsense in ((0, 1), (5, 6), (5, 0)):
        with pytest.raises(InputError):
            door.FixedSizeBatches(*nonsense)


def test_nothing_is_promised_without_noise_and_nonsense_is_refused():
    assert of("decor", [(1.0, 0.1, 10), (0.0, 0.1, 1)]) == math.inf
    assert of("decor", []) == of("decor-fixed", []) == 0
    accountant = door.PoissonAccountant()
    for z, rate in ((-1, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.1), (1.0, math.nan)):
        with pytest.raises(InputError):
            accountant.step(noise_multiplier=z, sample_rate=rate)
    with pytest.raises(InputError, match="steps"):
        of("decor", [(1.0, 0.1, 0)])
    with pytest.raises(InputError, match="delta"):
        accountant.get_epsilon(0)


def test_names_may_be_registered_again():
    door.register()
    assert type(create_accountant("decor")) is door.PoissonAccountant
    assert type(create_accountant("decor-fixed")) is door.FixedSizeAccountant
