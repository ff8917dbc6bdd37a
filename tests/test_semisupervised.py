"""Neighbours among codes, against scikit-learn and by hand."""

import pytest
import torch
from sklearn.model_selection import GroupKFold
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from lae_backpack.downstream import semisupervised
from lae_backpack.downstream.semisupervised import CodeNeighbours
from tests.fakes import fitted, seeded


class Scatter:
    """The code is the image, by every encoder at a distance that grows with scale."""

    def __init__(self, scale: float = 0.0) -> None:
        self.scale = scale

    def latent_samples(self, x, n_samples, generator=None):
        noise = torch.randn(n_samples, *x.shape, generator=generator)
        return x + self.scale * noise


def blobs(n_per_class: int, spread: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = seeded(seed)
    labels = torch.arange(3).repeat(n_per_class)
    centres = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    noise = torch.randn(len(labels), 2, generator=generator)
    return centres[labels] + spread * noise, labels


@pytest.mark.parametrize("k", [1, 5])
def test_predictions_of_scikit_learn(k: int):
    x, labels = blobs(30, 0.9)
    others, _ = blobs(40, 0.9, seed=1)
    ours = CodeNeighbours(Scatter(), n_copies=1, neighbours=(k,)).fit(x, labels)
    theirs = KNeighborsClassifier(k).fit(x.numpy(), labels.numpy())
    votes = torch.from_numpy(theirs.predict_proba(others.numpy()))
    first, second = votes.topk(2)[0].T
    clear = first > second  # ties are another matter
    assert clear.sum() > 80 and ours.n_neighbours == k
    expected = votes.argmax(1)
    assert torch.equal(ours.predict(others)[clear], expected[clear])


def test_the_nearest_of_equally_many_wins():
    x = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [3.0, 0.0], [-4.0, 0.0], [9.0, 0.0]])
    labels = torch.tensor([7, 2, 7, 2, 5])
    ours = CodeNeighbours(Scatter(), n_copies=1, neighbours=(4,)).fit(x, labels)
    assert ours.predict(torch.zeros(1, 2)).tolist() == [7]
    assert ours.predict(torch.tensor([[-1.0, 0.0]])).tolist() == [2]


def test_folds_never_share_an_image_and_have_every_class():
    own = torch.cat((torch.zeros(9), torch.ones(31), 2 * torch.ones(5))).long()
    model = CodeNeighbours(Scatter(), n_folds=4, generator=seeded())
    folds = model._folds(own)
    assert folds.shape == own.shape  # an image is in one fold, with all its copies
    counts = torch.stack([own[folds == f].bincount(minlength=3) for f in range(4)])
    assert (counts.max(0).values - counts.min(0).values <= 1).all()
    assert counts.min() >= 1
    # Rarer classes than folds make fewer of them.
    fewer = CodeNeighbours(Scatter(), n_folds=9)._folds(own)
    assert fewer.unique().tolist() == [0, 1, 2, 3, 4]


def test_cross_validation_without_leaks():
    """Labels that mean nothing: leaking copies would predict every one of them."""
    generator = seeded(4)
    x = torch.rand(200, 2, generator=generator)
    labels = torch.randint(2, (200,), generator=generator)
    model = CodeNeighbours(Scatter(1e-4), 10, generator=generator).fit(x, labels)
    assert set(model.accuracies) == {1, 3, 5, 7, 9}
    assert all(0.35 < share < 0.65 for share in model.accuracies.values())


def test_accuracies_of_the_folds_by_scikit_learn(monkeypatch: pytest.MonkeyPatch):
    x, labels = blobs(15, 1.0)
    groups = torch.arange(45)
    splits = list(GroupKFold(3).split(x, labels, groups))
    folds = torch.empty(45, dtype=torch.long)
    for number, (_, held_out) in enumerate(splits):
        folds[held_out] = number
    monkeypatch.setattr(CodeNeighbours, "_folds", lambda self, own: folds)
    la = Scatter(0.3)
    ours = CodeNeighbours(la, 4, (1, 3), n_folds=3, generator=seeded()).fit(x, labels)
    copies = la.latent_samples(x, 4, seeded())
    for k in (1, 3):
        right = 0
        for kept, held_out in splits:
            classifier = KNeighborsClassifier(k)
            known = copies[:, kept].flatten(0, 1).numpy()
            classifier.fit(known, labels[kept].repeat(4).numpy())
            centre = copies[:, held_out].mean(0).numpy()
            right += (classifier.predict(centre) == labels[held_out].numpy()).sum()
        # Three different votes are a tie, where scikit-learn takes the first class.
        assert ours.accuracies[k] == pytest.approx(right / 45, abs=0.03)
    best = max(ours.accuracies.values())
    assert ours.accuracies[ours.n_neighbours] == best


def test_noisy_labels_want_more_neighbours():
    x, labels = blobs(100, 0.4)
    wrong = torch.rand(300, generator=seeded()) < 0.25
    noisy = torch.where(wrong, (labels + 1) % 3, labels)
    model = CodeNeighbours(Scatter(), 1, (1, 15), generator=seeded()).fit(x, noisy)
    assert model.n_neighbours == 15
    others, true = blobs(50, 0.4, seed=1)
    single = CodeNeighbours(Scatter(), 1, (1,)).fit(x, noisy)
    assert model.accuracy(others, true) > single.accuracy(others, true) + 0.1


def test_one_label_per_class_takes_the_least_number():
    x, labels = blobs(1, 0.1)
    model = CodeNeighbours(Scatter(0.01), 20, (3, 1)).fit(x, labels)
    assert model.n_neighbours == 1 and model.accuracies == {}
    assert model.accuracy(*blobs(20, 0.1, seed=1)) == 1.0


def test_labels_of_any_kind():
    x, labels = blobs(5, 0.1)
    model = CodeNeighbours(Scatter(0.01), 5).fit(x, 10 * labels - 3)
    assert model.predict(x).tolist() == (10 * labels - 3).tolist()
    model = CodeNeighbours(Scatter(0.01), 5).fit(x, labels == 1)
    assert model.predict(x).dtype == torch.bool
    assert model.accuracy(x, labels == 1) == 1.0


def test_predictions_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch):
    x, labels = blobs(10, 0.8)
    model = CodeNeighbours(Scatter(), 3).fit(x, labels)
    whole = model.predict(x)
    monkeypatch.setattr(semisupervised, "automatic_size", lambda *_: 4)
    assert torch.equal(model.predict(x), whole)


def test_with_a_laplace_autoencoder():
    la, x = fitted()
    labels = (x.flatten(1)[:, 0] > 0.5).long()
    first = CodeNeighbours(la, 8, generator=seeded()).fit(x, labels)
    again = CodeNeighbours(la, 8, generator=seeded()).fit(x, labels)
    assert first.n_neighbours == again.n_neighbours
    assert torch.equal(first.predict(x), again.predict(x))


def test_bad_input():
    x, labels = blobs(5, 0.1)
    with pytest.raises(RuntimeError, match=r"Call fit\(x, labels\)"):
        CodeNeighbours(Scatter()).predict(x)
    with pytest.raises(ValueError, match="n_copies must be at least 1"):
        CodeNeighbours(Scatter(), 0)
    with pytest.raises(ValueError, match="n_folds must be at least 2"):
        CodeNeighbours(Scatter(), n_folds=1)
    with pytest.raises(ValueError, match="neighbours is empty"):
        CodeNeighbours(Scatter(), neighbours=())
    with pytest.raises(ValueError, match="neighbours must be at least 1"):
        CodeNeighbours(Scatter(), neighbours=(0,))
    model = CodeNeighbours(Scatter(), 2, (100,))
    with pytest.raises(ValueError, match="neighbours must have one of at most 24"):
        model.fit(x, labels)
    for wrong in (labels[:-1], labels.double(), labels[:, None]):
        with pytest.raises(ValueError, match=r"labels must be \[15\] integers"):
            CodeNeighbours(Scatter()).fit(x, wrong)
    with pytest.raises(ValueError, match="x has shape"):
        CodeNeighbours(Scatter()).fit(x[:0], labels[:0])
    with pytest.raises(TypeError, match="object has no latent_samples"):
        CodeNeighbours(object()).fit(x, labels)
