"""MC dropout on a rotated digit (Gal & Ghahramani 2016, Figure 4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import credo
from credo import metrics, plots
from credo.architectures import LeNet
from credo.datasets import Images, rotate
from credo.experiments._shared import handwritten_digits
from credo.experiments.registry import Budget, Result, Row, RunConfig, experiment
from credo.seeding import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.predictive import Predictive

DEGREES = 10.0 * torch.arange(12)
DRAWS = 100
TEST_DRAWS = 10  # for the accuracy on the test set
DROPOUT = 0.5
WEIGHT_DECAY = 5e-4
EPOCHS: dict[Budget, int] = {"full": 10, "quick": 60, "smoke": 1}
PUBLISHED = (1, 1, 1, 1, 1, 5, 5, 7, 7, 7, 7, 7)
SOURCE = "section 5.2"


@experiment(
    "dropout-rotated-digit",
    title="MC dropout on a rotated digit: softmax inputs and outputs",
    reference="Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016, Figure 4 (arXiv:1506.02142)",
    figures=["scatter"],
)
def run(config: RunConfig) -> Result:
    """A 1 is rotated until it is no longer a digit, and a network with dropout classifies it.

    The paper's claim. A softmax output is no measure of confidence: for some of the rotated images the outputs of 100
    stochastic forward passes fill "the entire space" from 0 to 1, although their mean has a clear class. The paper's
    network classifies the 12 images as 1 1 1 1 1 5 5 7 7 7 7 7 (section 5.2).

    What is run. LeNet with dropout of rate 0.5 before the last fully connected layer is trained on MNIST; 100 dropout
    masks are drawn, and the inputs and the outputs of the softmax are plotted for the three most probable classes. The
    table has the classes of the 12 images, and the uncertainty for the upright digit and for the least certain one.

    What differs. The paper gives neither the image nor the angles: ours are the first 1 of the test set, rotated
    counterclockwise in steps of 10°; of both directions and four steps that were tried, one that ends in 7s as the
    paper's does (clockwise it ends in 4s). It trains for a million steps of stochastic gradient descent in Caffe; we
    train for ten epochs with Adam, with the weight decay of Caffe's LeNet, 5·10⁻⁴, as the prior. The quick and the
    smoke run use the 8×8 digits of scikit-learn in place of MNIST, and their classes may differ from the paper's.

    What to look for. The softmax inputs of two classes overlap, and the softmax outputs fill the space at the same
    angles. Where ours overlap, the paper's 5 is the second most probable class rather than the first.
    """
    data = handwritten_digits(config)
    config.report(f"training LeNet on {len(data.y_train):,} digits")
    method = _train(data, config)
    one = data.x_test[data.y_test == 1][:1]
    rotated = rotate(one.expand(len(DEGREES), -1, -1, -1), DEGREES)
    config.report("predicting")
    predictor = method._predictor(DRAWS, config.seed)  # the same masks for the inputs and the outputs of the softmax
    predictive, inputs = predictor(rotated).cpu(), predictor.outputs(rotated).cpu()
    tested = method.predict(data.x_test, samples=TEST_DRAWS, seed=config.seed).cpu()
    accuracy = metrics.accuracy(tested, data.y_test)
    rows = _measure(predictive, accuracy, on_mnist=config.budget == "full")
    return Result(tuple(rows), {"scatter": _scatter(rotated, inputs, predictive)})


def _train(data: Images, config: RunConfig) -> credo.MCDropout:
    """Train LeNet with dropout before its last layer only.

    A weight decay λ adds λ/2·‖W‖² to the mean loss, the prior of length scale l adds l²/(2N)·‖W‖²: l² = λN. After
    dropout the prior has 1/(1 − p) times the weight.
    """
    with seeded(config.seed, torch.device("cpu")):
        method = credo.MCDropout(
            LeNet(size=data.x_train.shape[-1]),
            likelihood=credo.Categorical(),
            p={"classifier.3.weight": DROPOUT, "*": 0.0},
            length_scale=math.sqrt(WEIGHT_DECAY * len(data.y_train)),
        )
    return method.fit(
        (data.x_train, data.y_train),
        epochs=EPOCHS[config.budget],
        batch_size=64,
        device=config.device,
        seed=config.seed,
        progress=False,
    )


def _measure(predictive: Predictive, accuracy: float, *, on_mnist: bool) -> list[Row]:
    classes = predictive.mode.tolist()
    in_order = f"in order, first seed: {' '.join(map(str, classes))}"
    counts = [
        Row(
            f"images of the 12 that are classified as {digit}",
            (float(classes.count(digit)),),
            float(PUBLISHED.count(digit)) if on_mnist else None,
            SOURCE if on_mnist else "",
            in_order if digit == 1 else "",
        )
        for digit in sorted(set(PUBLISHED))
    ]
    least_certain = int(predictive.entropy.argmax())
    leading = predictive.draws[:, least_certain, classes[least_certain]]
    upright, worst = predictive[0], predictive[least_certain]
    return [
        *counts,
        Row("entropy of the upright 1, nats", (upright.entropy.item(),)),
        Row("entropy of the least certain image, nats", (worst.entropy.item(),)),
        Row("of which mutual information", (worst.mutual_information.item(),)),
        Row(
            "range of its leading softmax output over 100 draws",
            ((leading.max() - leading.min()).item(),),
            note="the paper: “as large as the entire space”, that is 1",
        ),
        Row("test accuracy", (accuracy,)),
    ]


def _scatter(rotated: Tensor, inputs: Tensor, predictive: Predictive) -> Figure:
    from matplotlib.figure import Figure

    shown = plots.leading_classes(predictive, 3)
    figure = Figure(figsize=(7.0, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    plots.softmax_scatter(DEGREES, inputs, above, classes=shown, images=rotated, label="softmax input")
    plots.softmax_scatter(DEGREES, predictive, below, classes=shown, label="softmax output")
    above.label_outer()
    return figure
