"""A 1 is turned until it is no digit, and a classifier with dropout is asked what it sees.

The paper's claim. A softmax output is no measure of confidence: for some of the turned images the outputs of 100
stochastic forward passes fill "the entire space" from 0 to 1, though their mean names a class. For the 12 images the
paper's network says 1 1 1 1 1 5 5 7 7 7 7 7 (section 5.2).

What is run. LeNet with dropout of rate 0.5 before the last fully connected layer learns MNIST; 100 dropout masks are
drawn, and the inputs and the outputs of the softmax are scattered for the three leading classes. The table counts the
classes of the 12 images and says how unsure the network is of the upright digit and of the worst one.

What differs. The paper gives neither the image nor the angles: ours are the first 1 of the test set, turned
anticlockwise in steps of 10°; of both directions and four steps that were tried, one that ends in 7s as the paper's
does (clockwise it ends in 4s). It trains for a million steps of stochastic gradient descent in Caffe; we train for ten
epochs with Adam, with the weight decay of Caffe's LeNet, 5·10⁻⁴, as the prior. The quick and the smoke run use the
8×8 digits of scikit-learn in place of MNIST, and their classes need not be the paper's.

What to look for. The clouds of softmax inputs that cross, and the softmax outputs that fill the space at the same
angles. Where ours cross, the paper's 5 is the runner-up rather than the winner.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import credo
from credo import metrics, plots
from credo.architectures import LeNet
from credo.datasets import Images, load_digits, rotate
from credo.datasets.files import images as image_set
from credo.experiments.registry import Effort, Result, Row, Setting, experiment
from credo.seeding import seeded

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from credo.predictive import Predictive

DEGREES = 10.0 * torch.arange(12)
DRAWS = 100
TEST_DRAWS = 10  # of the whole test set, for the accuracy alone
DROPOUT = 0.5
WEIGHT_DECAY = 5e-4
EPOCHS: dict[Effort, int] = {"full": 10, "quick": 60, "smoke": 1}
PUBLISHED = (1, 1, 1, 1, 1, 5, 5, 7, 7, 7, 7, 7)
SOURCE = "section 5.2"


@experiment(
    title="A rotated digit: dropout shows what the softmax hides",
    reference="Gal & Ghahramani, Dropout as a Bayesian approximation, ICML 2016, Figure 4 (arXiv:1506.02142)",
    figures=["scatter"],
)
def run(setting: Setting) -> Result:
    """Train LeNet, turn a 1, and scatter what 100 dropout masks make of it."""
    data = image_set("mnist") if setting.effort == "full" else load_digits(seed=setting.seed)
    setting.report(f"training LeNet on {len(data.y_train):,} digits")
    method = train(data, setting)
    one = data.x_test[data.y_test == 1][:1]
    turned = rotate(one.expand(len(DEGREES), -1, -1, -1), DEGREES)
    setting.report("predicting")
    predictor = method._predictor(DRAWS, setting.seed)  # the same masks for the inputs and the outputs of the softmax
    predictive, inputs = predictor(turned).cpu(), predictor.outputs(turned).cpu()
    tested = method.predict(data.x_test, samples=TEST_DRAWS, seed=setting.seed).cpu()
    accuracy = metrics.accuracy(tested, data.y_test)
    rows = _measure(predictive, accuracy, on_mnist=setting.effort == "full")
    return Result(tuple(rows), {"scatter": _scatter(turned, inputs, predictive)})


def train(data: Images, setting: Setting) -> credo.MCDropout:
    """LeNet with dropout before its last layer alone.

    A weight decay λ adds λ/2·‖W‖² to the mean loss, the prior of length scale l adds l²/(2N)·‖W‖²: l² = λN. Behind
    dropout the prior counts 1/(1 − p) times as much.
    """
    with seeded(setting.seed, torch.device("cpu")):
        method = credo.MCDropout(
            LeNet(size=data.x_train.shape[-1]),
            likelihood=credo.Categorical(),
            p={"classifier.3.weight": DROPOUT, "*": 0.0},
            length_scale=math.sqrt(WEIGHT_DECAY * len(data.y_train)),
        )
    return method.fit(
        (data.x_train, data.y_train),
        epochs=EPOCHS[setting.effort],
        batch_size=64,
        device=setting.device,
        seed=setting.seed,
        progress=False,
    )


def _measure(predictive: Predictive, accuracy: float, *, on_mnist: bool) -> list[Row]:
    classes = predictive.mode.tolist()
    in_order = f"in order, first seed: {' '.join(map(str, classes))}"
    counts = [
        Row(
            f"images of the 12 that are called {digit}",
            (float(classes.count(digit)),),
            float(PUBLISHED.count(digit)) if on_mnist else None,
            SOURCE if on_mnist else "",
            in_order if digit == 1 else "",
        )
        for digit in sorted(set(PUBLISHED))
    ]
    unsure = int(predictive.entropy.argmax())
    leading = predictive.draws[:, unsure, classes[unsure]]
    upright, worst = predictive[0], predictive[unsure]
    return [
        *counts,
        Row("entropy of the upright 1, nats", (upright.entropy.item(),)),
        Row("entropy of the image that it is least sure of, nats", (worst.entropy.item(),)),
        Row("of which mutual information", (worst.mutual_information.item(),)),
        Row(
            "range of its leading softmax output over 100 draws",
            ((leading.max() - leading.min()).item(),),
            note="the paper: “as large as the entire space”, that is 1",
        ),
        Row("test accuracy", (accuracy,)),
    ]


def _scatter(turned: Tensor, inputs: Tensor, predictive: Predictive) -> Figure:
    from matplotlib.figure import Figure

    shown = plots.leading_classes(predictive, 3)
    figure = Figure(figsize=(7.0, 6.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    plots.softmax_scatter(DEGREES, inputs, above, classes=shown, images=turned, label="softmax input")
    plots.softmax_scatter(DEGREES, predictive, below, classes=shown, label="softmax output")
    above.label_outer()
    return figure
