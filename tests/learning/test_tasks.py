import numpy as np
import pytest
import torch
from datasets.conftest import needs
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression

from decor.errors import InputError
from decor.learning import features, losses, shards, tasks
from decor.learning.datasets import a9a, mnist, scikit_learn_files


def together(task):
    return tuple(torch.cat(parts) for parts in zip(*task.shards, strict=True))


def as_rows(X, y):
    return sorted(map(tuple, torch.cat([X.double(), y.double()[:, None]], dim=1).tolist()))


class TestLeastSquares:
    def test_every_user_holds_the_record_of_the_paper(self):
        task = tasks.least_squares(users=5, dimension=3, seed=1)
        assert task.users == 5 and task.records == (1,) * 5 and task.parameters == 3
        for i, (X, y) in enumerate(task.shards, start=1):
            assert (
                X.shape == (1, 3, 3)
                and y.shape == (1, 3, 1)
                and X.dtype == y.dtype == torch.float32
            )
            assert torch.allclose(X[0], i / 5**0.5 * torch.eye(3))
        assert (next(task.model.parameters()) == 1).all(), "starts at ones"

    def test_the_loss_is_half_the_squared_distance(self):
        task = tasks.least_squares(users=4, dimension=3)
        for X, y in task.shards:
            expected = ((X[0] @ torch.ones(3) - y[0, :, 0]) ** 2).sum() / 2
            assert torch.isclose(task.loss(task.model(X), y), expected)

    @pytest.mark.parametrize(("users", "dimension"), [(1, 1), (16, 10), (7, 4)])
    def test_the_optimum_is_the_one_of_all_equations_together(self, users, dimension):
        task = tasks.least_squares(users, dimension, seed=3)
        X, y = together(task)
        A, b = X.double().reshape(-1, dimension).numpy(), y.double().reshape(-1).numpy()
        expected = np.linalg.lstsq(A, b)[0]
        assert task.optimum.dtype == torch.float64 and task.optimum.shape == (dimension,)
        assert np.allclose(task.optimum.numpy(), expected, rtol=1e-12, atol=1e-14)

    def test_targets_follow_their_law(self):
        """i b_i is standard normal for each user i; deviations of 2/3 and 3/2 are rejected."""
        b = (
            torch.cat(
                [y.flatten()[None] for _, y in tasks.least_squares(users=40, dimension=500).shards]
            )
            .double()
            .numpy()
        )
        z = b * np.arange(1, 41)[:, None]
        for values in (z.ravel(), z[0], z[-1]):
            for scale, fits in ((1, True), (2 / 3, False), (3 / 2, False)):
                assert (stats.kstest(values, stats.norm(0, scale).cdf).pvalue > 1e-4) == fits
        assert abs(np.corrcoef(z[0], z[1])[0, 1]) < 0.2, "users' targets are independent"

    def test_the_seed_draws_the_targets(self):
        first, again, other = (
            torch.cat([y for _, y in tasks.least_squares(seed=s).shards]) for s in (1, 1, 2)
        )
        assert torch.equal(first, again) and not torch.equal(first, other)


class TestEmbedded:
    def test_breast_cancer_is_all_there_split_by_class_and_standardised_by_the_training_part(self):
        raw, labels = load_breast_cancer(return_X_y=True)
        task = tasks.breast_cancer(seed=2)
        (X, y), (test_X, test_y) = together(task), task.test
        assert len(X) + len(test_X) == 569 and test_y.bincount().tolist() == [42, 71], (
            "a fifth of 212 and of 357"
        )
        assert X.mean(0).abs().max() < 1e-5 and (X.std(0, correction=0) - 1).abs().max() < 1e-5
        # undo the standardisation: a row of each part tells its scale, and every raw record must
        # come back once
        scale, shift = _affine(X, test_X, raw)
        back = torch.cat([X, test_X]).double().numpy() * scale + shift
        order, expected = np.lexsort(back.round(4).T[:3]), np.lexsort(raw.round(4).T[:3])
        assert np.allclose(back[order], raw[expected], rtol=1e-4, atol=1e-4)
        assert np.array_equal(torch.cat([y, test_y]).numpy()[order], labels[expected])
        assert "malignant" in task.facts["labels"] and "standardise" in task.facts["public"]

    def test_breast_cancer_can_be_learnt(self):
        task = tasks.breast_cancer()
        (X, y), (test_X, test_y) = together(task), task.test
        assert (
            LogisticRegression().fit(X.numpy(), y.numpy()).score(test_X.numpy(), test_y.numpy())
            > 0.93
        )
        assert task.loss is losses.logistic and task.parameters == 31
        assert torch.isclose(task.loss(task.model(X), y), torch.tensor(2.0).log()), (
            "zeros: no opinion"
        )

    def test_digits_are_all_there_and_between_0_and_1(self):
        raw, labels = load_digits(return_X_y=True)
        task = tasks.digits(seed=2)
        (X, y), (test_X, test_y) = together(task), task.test
        assert as_rows(torch.cat([X, test_X]), torch.cat([y, test_y])) == as_rows(
            torch.tensor(raw / 16), torch.tensor(labels)
        )
        share = test_y.bincount() / torch.tensor(np.bincount(labels))
        assert share.min() > 0.19 and share.max() < 0.21
        assert task.parameters == 650 and tasks.digits(hidden=32).parameters == 64 * 32 + 32 + 330

    def test_the_seed_moves_the_test_part_the_shards_and_the_network(self):
        first, again, other = (tasks.digits(seed=s, hidden=4) for s in (1, 1, 2))
        for part in (
            lambda t: t.test[0],
            lambda t: t.shards[0][0],
            lambda t: next(t.model.parameters()),
        ):
            assert torch.equal(part(first), part(again))
            assert part(first).shape != part(other).shape or not torch.equal(
                part(first), part(other)
            )
        assert torch.equal(tasks.digits(seed=1, shards="by-label").test[0], first.test[0]), (
            "the test part is not a matter of shards"
        )

    def test_shards_are_dealt_as_asked(self):
        def labels_a_user(**way):
            return [len(y.unique()) for _, y in tasks.digits(users=10, **way).shards]

        assert max(labels_a_user(shards="by-label")) <= 3 and min(labels_a_user()) == 10
        even = [len(X) for X, _ in tasks.digits(users=10, shards="dirichlet", alpha=1e9).shards]
        assert max(even) - min(even) <= 10
        uneven = tasks.digits(users=10, shards="dirichlet", alpha=0.2)
        assert (
            max(uneven.records) > 3 * min(uneven.records)
            and sum(uneven.records) == uneven.facts["records"]
        )

    def test_features_stay_with_their_labels_and_records_with_their_users(self):
        """Each example of a shard is in the raw data, with its own label."""
        raw, labels = load_digits(return_X_y=True)
        label_of = {
            tuple(row): label
            for row, label in zip((raw / 16).tolist(), labels.tolist(), strict=True)
        }
        for X, y in tasks.digits(users=5, shards="dirichlet").shards:
            assert [label_of[tuple(row)] for row in X.double().tolist()] == y.tolist()

    def test_every_user_gets_the_records_that_the_shards_of_that_seed_name(self):
        X, y = scikit_learn_files.digits()
        kept, out = shards.hold_out(y, 0.2, seed=7)
        task = tasks.digits(users=5, seed=7, shards="dirichlet", alpha=1.0)
        for mine, records in zip(
            task.shards, shards.dirichlet(y[kept], 5, 1.0, seed=7), strict=True
        ):
            assert np.array_equal(mine[0], X[kept][records]) and np.array_equal(
                mine[1], y[kept][records]
            )
        assert np.array_equal(task.test[0], X[out])

    def test_facts_say_what_a_manifest_needs(self):
        facts = tasks.breast_cancer(users=4, seed=9).facts
        assert {"source", "records", "test_records", "split", "alpha", "seed"} <= set(facts)
        assert (
            facts["records"],
            facts["test_records"],
            facts["split"],
            facts["seed"],
            facts["alpha"],
        ) == (
            456,
            113,
            "iid",
            9,
            None,
        )
        assert tasks.digits(shards="dirichlet").facts["alpha"] == 10.0


def _affine(X, test_X, raw):
    """Scale and shift of every feature, from its extremes before and after."""
    z = torch.cat([X, test_X]).double().numpy()
    scale = (raw.max(0) - raw.min(0)) / (z.max(0) - z.min(0))
    return scale, raw.min(0) - z.min(0) * scale


@needs("a9a")
class TestA9a:
    def test_it_is_the_task_of_the_paper(self):
        task = tasks.a9a()
        X, y = together(task)
        (raw, labels), (test_raw, test_labels) = a9a.load()
        weight = torch.rand(123, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        marks = (X.double() @ weight + 100 * y).sort().values
        assert torch.allclose(
            marks, (torch.tensor(raw).double() @ weight + 100 * torch.tensor(labels)).sort().values
        )
        assert torch.equal(task.test[0], torch.tensor(test_raw)) and torch.equal(
            task.test[1], torch.tensor(test_labels)
        )
        assert task.users == 16 and task.parameters == 124 and task.facts["alpha"] == 10.0
        assert len(set(task.records)) > 8, "sizes differ, as parts of Dirichlet(10) do"

    @pytest.mark.parametrize(
        ("users", "way"),
        [
            (1, {}),
            (1, {"shards": "iid"}),
            (16_384, {"shards": "iid"}),
            (16_384, {"shards": "by-label"}),
            (16_384, {"alpha": 1e9}),
        ],
    )
    def test_one_user_and_very_many_have_all_records(self, users, way):
        task = tasks.a9a(users=users, **way)
        assert task.users == users and sum(task.records) == 32_561

    def test_too_many_users_for_dirichlet_are_told_so(self):
        with pytest.raises(
            InputError, match="16,384 users .* larger alpha, fewer users, or iid shards"
        ):
            tasks.a9a(users=16_384)


@needs("mnist")
def test_mnist_is_the_task_of_the_paper():
    task = tasks.mnist(users=16)
    assert (
        task.parameters == 101_770 and sum(task.records) == 60_000 and len(task.test[0]) == 10_000
    )
    assert task.loss is losses.cross_entropy and task.facts["split"] == "dirichlet"
    assert [type(layer).__name__ for layer in task.model] == ["Linear", "ReLU", "Linear"]
    assert together(task)[1].bincount().tolist()[:2] == [5923, 6742]


def made_up(features, classes):
    """A function that loads random records instead of files."""
    rng = np.random.default_rng(0)
    parts = [
        (rng.random((count, features), dtype=np.float32), np.arange(count) % classes)
        for count in (60, 20)
    ]
    return lambda *_, **__: parts


def test_mnist_without_a_hidden_layer_is_linear(monkeypatch):
    monkeypatch.setattr(mnist, "load", made_up(784, 10))
    assert tasks.mnist(users=2, shards="iid", hidden=None).parameters == 7_850
    assert tasks.mnist(users=2, hidden=3).parameters == 785 * 3 + 40
    assert tasks.mnist(users=2).parameters == 785 * 128 + 1290


@pytest.mark.parametrize("build", [tasks.mnist, tasks.fashion_mnist])
def test_tasks_take_scattering_features_of_the_same_images(build, monkeypatch):
    monkeypatch.setattr(mnist, "load", made_up(784, 10))
    monkeypatch.setattr(mnist, "is_published_split", lambda dataset: False)
    plain = build(users=3, seed=2, shards="iid", hidden=None)
    task = build(users=3, seed=2, shards="iid", features="scattering")
    assert task.parameters == 5185 * 10 and task.name == f"{plain.name}-scattering"
    for (X, y), (pixels, labels) in zip(
        [*task.shards, task.test], [*plain.shards, plain.test], strict=True
    ):
        assert torch.equal(X, features.scattering(pixels.view(-1, 28, 28)))
        assert torch.equal(y, labels)
    assert "deviation" not in task.facts["public"] and "deviation" in plain.facts["public"]
    assert "fixed wavelets" in task.facts["features"]
    assert build(users=2, features="scattering", hidden=3).parameters == 5185 * 3 + 40


def test_the_facts_say_which_split_the_files_have(monkeypatch):
    monkeypatch.setattr(mnist, "load", made_up(784, 10))
    for is_published, said in ((True, "Fashion-MNIST"), (False, "Fashion-MNIST, split anew: 1,")):
        monkeypatch.setattr(mnist, "is_published_split", lambda dataset, it=is_published: it)
        assert tasks.fashion_mnist(users=2).facts["source"].startswith(said)


class TestByName:
    @pytest.mark.parametrize(
        "name", ["least-squares", "least_squares", "breast-cancer", "breast_cancer", "digits"]
    )
    def test_names_with_hyphens_or_underscores_make_their_task(self, name):
        task = tasks.make(name, users=3, seed=4)
        assert task.name == name.replace("_", "-") and task.users == 3 and task.facts["seed"] == 4

    @pytest.mark.parametrize(
        "name",
        ["a9a", "mnist", "fashion-mnist", "mnist-scattering", "fashion-mnist-scattering"],
    )
    def test_names_of_files_make_their_task(self, name, monkeypatch):
        monkeypatch.setattr(a9a, "load", made_up(123, 2))
        monkeypatch.setattr(mnist, "load", made_up(784, 10))
        monkeypatch.setattr(mnist, "is_published_split", lambda dataset: True)
        for way, split in (("iid", "iid"), (None, "dirichlet")):
            task = tasks.make(name, users=2, shards=way)
            assert task.name == name and task.facts["split"] == split and sum(task.records) == 60

    def test_options_reach_the_task_and_defaults_are_its_own(self):
        assert tasks.make("digits", users=4).facts["split"] == "iid"
        facts = tasks.make("digits", users=4, shards="dirichlet", alpha=3).facts
        assert (facts["split"], facts["alpha"]) == ("dirichlet", 3.0)
        assert tasks.make("digits", users=4, shards="by-label").facts["split"] == "by-label"

    def test_every_name_is_known(self, monkeypatch, tmp_path):
        monkeypatch.setenv("DECOR_DATA", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        for name in tasks.NAMES:
            try:
                assert tasks.make(name).name == name
            except InputError as problem:
                assert f"of {name.removesuffix('-scattering')} is missing" in str(problem)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda: tasks.make("cifar"),
            "'cifar'; there are least-squares, breast-cancer, digits, a9a, mnist, fashion-mnist, ",
        ),
        (lambda: tasks.make(None), "no task named None"),
        (lambda: tasks.make("least-squares", shards="iid"), "leave out shards"),
        (lambda: tasks.make("least-squares", alpha=1.0), "leave out shards and alpha"),
        (lambda: tasks.make("digits", alpha=1.0), "changes nothing for iid"),
        (lambda: tasks.breast_cancer(users=457), "456 examples cannot give 457 users"),
        (lambda: tasks.breast_cancer(users=0), "users must be .*not 0"),
        (lambda: tasks.breast_cancer(seed=-1), "seed"),
        (
            lambda: tasks.digits(shards="by_label"),
            "one of iid, dirichlet, by-label, not 'by_label'",
        ),
        (lambda: tasks.digits(hidden=0), "hidden must be .*not 0"),
        (lambda: tasks.a9a(shards="iid", alpha=10.0), "changes nothing for iid"),
        (lambda: tasks.mnist(users=0), "users"),
        (lambda: tasks.mnist(alpha=-1), "alpha"),
        (lambda: tasks.mnist(hidden="wide"), "hidden must be .*not 'wide'.*None for a linear"),
        (
            lambda: tasks.fashion_mnist(features="waves"),
            "features must be .* not 'waves'",
        ),
        (lambda: tasks.least_squares(users=0), "users"),
        (
            lambda: tasks.least_squares(dimension=2.0),
            "dimension must be .*not 2.0",
        ),
    ],
)
def test_impossible_tasks_say_what_to_give_instead_before_files_are_read(
    build, said, monkeypatch, tmp_path
):
    monkeypatch.setenv("DECOR_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=said):
        build()
