"""The networks: their sizes, and that they train, are judged and are chosen as they should."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securemedian import cli
from securemedian.laboratory import data, models
from securemedian.laboratory.models.networks import Model
from securemedian.mpc.errors import ConfigError
from tests.conftest import needs

needs("torch", "sklearn")

pytestmark = pytest.mark.slow

SIZES = {
    "mlp": 199_210,
    "cnn-mnist": 1_663_370,
    "cnn-cifar10": 409_182,
    "cnn-cifar10-share": 30_138,
    "cnn-cifar10-small": 39_354,
    "mlp-cifar10": 616_610,
    "digits": 2_410,
    "digits-linear": 650,
    "clinic": 350,
    "heart": 54,
    "mlp-mnist-small": 25_450,
    "gru-shakespeare": 16_617,
}


def test_the_registry() -> None:
    assert set(models.MODELS) == set(SIZES)
    defaults = {source.name: source.model for source in data.SOURCES.values()}
    assert defaults == {
        "mnist": "mlp",
        "cifar10": "cnn-cifar10",
        "digits": "digits",
        "clinic": "clinic",
        "heart": "heart",
        "shakespeare": "gru-shakespeare",
    }
    assert all(model.name == name for name, model in models.MODELS.items())


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_shapes(name: str) -> None:
    """The size is the built network's, which gives one value per class for rows of its length."""
    import torch

    model = models.MODELS[name]
    start = models.start(model, 1)
    assert start.dtype == np.float32
    assert start.shape == (SIZES[name],)
    with torch.no_grad():
        assert model.build()(torch.zeros(3, model.inputs)).shape == (3, model.classes)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    models.use_one_thread()


@pytest.mark.parametrize(("name", "epochs"), [("cnn-mnist", 15), ("cnn-cifar10", 40)])
def test_convolutions_train_and_are_deterministic(name: str, epochs: int) -> None:
    """Two images of each of two labels, told apart by their brightness, are learnt by heart."""
    model = replace(models.MODELS[name], batch=4, rate=0.05, epochs=2)
    images = np.random.default_rng(1).uniform(0, 0.2, (4, model.inputs)).astype(np.float32)
    images[2:] += np.float32(0.8)
    labels = np.array([0, 0, 1, 1])
    start = models.start(model, 1)
    one, two = (
        models.train(model, start, images, labels, np.random.default_rng(1)) for _ in range(2)
    )
    assert np.array_equal(one, two)
    learnt = models.train(
        replace(model, epochs=epochs), start, images, labels, np.random.default_rng(1)
    )
    assert models.accuracy(model, learnt, images, labels) == 1.0


def test_a_convolution_sees_rows_as_images() -> None:
    """The first layer of each is the convolution of the reshaped image, written out at a pixel."""
    import torch

    for name, row, column, padding in (("cnn-mnist", 3, 5, 2), ("cnn-cifar10", 3, 5, 0)):
        model = models.MODELS[name]
        network = model.build()
        assert isinstance(network, torch.nn.Sequential)
        image = np.random.default_rng(1).uniform(0, 1, model.shape).astype(np.float32)
        with torch.no_grad():
            outputs = torch.nn.Sequential(*list(network)[:2])(
                torch.from_numpy(image.reshape(1, -1))
            )
            seen = outputs[0, :, row, column].numpy()
        layer = network[1]
        assert isinstance(layer, torch.nn.Conv2d) and layer.bias is not None
        kernel, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        top, left = row - padding, column - padding
        window = image[:, top : top + 5, left : left + 5]
        assert np.allclose(seen, (kernel * window).sum(axis=(1, 2, 3)) + bias, atol=1e-5)


def test_accuracy_is_that_of_all_images_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    digits, model = data.load(), models.MODELS["digits"]
    vector = models.start(model, 3)
    guesses = []
    for batch in (1, 7, 297, 5000):
        monkeypatch.setattr(models, "_TEST_BATCH", batch)
        guesses.append(models.accuracy(model, vector, digits.test_images, digits.test_labels))
    hidden = np.maximum(digits.test_images @ vector[:2048].reshape(32, 64).T + vector[2048:2080], 0)
    scores = hidden @ vector[2080:2400].reshape(10, 32).T + vector[2400:]
    assert guesses == [float((scores.argmax(axis=1) == digits.test_labels).mean())] * 4


def test_accuracy_is_by_the_running_statistics_of_the_vector() -> None:
    """Statistics that do not fit the columns make the same network guess."""
    clinic, model = data.load(None, "clinic"), models.MODELS["clinic"]
    learnt, start = models.start(model, 1), models.start(model, 1)
    for number in range(3):
        learnt = models.train(
            model,
            learnt,
            clinic.images[:500],
            clinic.labels[:500],
            np.random.default_rng(number),
        )
    assert models.accuracy(model, learnt, clinic.test_images, clinic.test_labels) > 0.75
    # of BatchNorm's entries: weight, bias, running mean, running variance, 7 of each
    unfit = learnt.copy()
    unfit[14:28] = start[14:28]
    assert models.accuracy(model, unfit, clinic.test_images, clinic.test_labels) < 0.6


def test_a_last_batch_of_one_row_is_left_out_where_batches_are_normalised() -> None:
    clinic, model = data.load(None, "clinic"), replace(models.MODELS["clinic"], batch=4)
    start, order = models.start(model, 1), np.random.default_rng(1).permutation(5)
    rows = order[:4]
    five = models.train(
        model, start, clinic.images[:5], clinic.labels[:5], np.random.default_rng(1)
    )
    rng = np.random.default_rng(1)
    four = models.train(
        replace(model, batch=4), start, clinic.images[rows], clinic.labels[rows], rng
    )
    # the same four rows, in another order: equal up to rounding
    assert np.allclose(five, four, rtol=1e-4)
    alone = models.train(model, start, clinic.images[:1], clinic.labels[:1], rng)
    assert np.array_equal(alone, start)


def test_a_model_for_other_images_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    digits = data.load()
    models.check_fits(models.MODELS["digits"], digits)
    with pytest.raises(
        ConfigError,
        match=r"images of 784 values in 10 .* digits has 64 in 10; choose another",
    ):
        models.check_fits(models.MODELS["mlp"], digits)
    with pytest.raises(ConfigError, match="in 3 classes"):
        models.check_fits(
            Model("other", models.MODELS["digits"].build, (64,), 1, 0.1, classes=3), digits
        )
    assert cli.main(["demo", "--dataset", "digits", "--network", "cnn-mnist"]) == 2
    assert "choose another model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "model"),
    [("mnist", "mlp"), ("digits", "digits"), ("cifar10", "cnn-cifar10"), ("mlp", "mlp")],
)
def test_init_knows_models_and_data_sets(tmp_path: Path, name: str, model: str) -> None:
    assert cli.main(["init", name, str(tmp_path / "start.npy"), "--seed", "2"]) == 0
    assert np.array_equal(np.load(tmp_path / "start.npy"), models.start(models.MODELS[model], 2))
