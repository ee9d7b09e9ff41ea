"""The rules of probability on discrete tables."""

from __future__ import annotations

import pytest
import torch

from credo.conjugate import ConditionalTable, JointTable, bayes
from credo.errors import InputError

TINY = 1e-14
# Bishop, section 1.2: a red box with 2 apples and 6 oranges, a blue one with 3 and 1; red is chosen 4 times in 10.
BOX = JointTable([0.4, 0.6], ["box"])
FRUIT = ConditionalTable([[1 / 4, 3 / 4], [3 / 4, 1 / 4]], of="fruit", given="box")


def table():
    counts = torch.randint(1, 9, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    return JointTable.from_counts(counts, ["a", "b", "c"])


def close(actual, expected):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=TINY, atol=TINY)


def test_bishop_fruit_boxes_example():
    joint = FRUIT.times(BOX)
    close(joint.marginal("fruit").probabilities, [11 / 20, 9 / 20])
    posterior = bayes(BOX, FRUIT)
    assert (posterior.of, posterior.given) == (("box",), ("fruit",))
    close(posterior.probabilities[1], [2 / 3, 1 / 3])
    close(joint.given(fruit=1).probabilities, [2 / 3, 1 / 3])


def test_sum_rule():
    close(table().marginal("b").probabilities, table().probabilities.sum((0, 2)))
    close(table().marginal("a", "c").marginal("c").probabilities, table().marginal("c").probabilities)


def test_marginal_axes_follow_the_given_order():
    close(table().marginal("c", "a", "b").probabilities, table().probabilities.permute(2, 0, 1))
    assert table().marginal("c", "a").names == ("c", "a")
    close(table().marginal("c", "a").probabilities, table().probabilities.sum(1).T)


@pytest.mark.parametrize(("of", "given"), [("a", "b"), ("c", ("b", "a")), (("c", "a"), "b")])
def test_product_rule(of, given):
    conditional = table().conditional(of, given)
    joint = conditional.times(table().marginal(*conditional.given))
    close(joint.marginal(*conditional.of, *conditional.given).probabilities,
          table().marginal(*conditional.of, *conditional.given).probabilities)  # fmt: skip


def test_bayes_equals_conditional_of_joint():
    prior, likelihood = table().marginal("a", "b"), table().conditional("c", ("a", "b"))
    close(bayes(prior, likelihood).probabilities, table().conditional(("a", "b"), "c").probabilities)


def test_sequential_conditioning_equals_joint_conditioning():
    close(table().given(b=1).given(c=2).probabilities, table().given(c=2, b=1).probabilities)
    close(table().given(b=1).marginal("a").probabilities, table().conditional("a", "b").probabilities[1])


def test_conditionals_sum_to_one():
    close(table().conditional(("a", "c"), "b").probabilities.sum((1, 2)), torch.ones(3))


def test_from_data_counts_rows():
    data = [[0, 1], [0, 1], [1, 2], [0, 0]]
    close(JointTable.from_data(data).probabilities, [[0.25, 0.5, 0.0], [0.0, 0.0, 0.25]])
    assert JointTable.from_data(data).names == ("x0", "x1")
    assert JointTable.from_data(data, sizes=[3, 3]).probabilities.shape == (3, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: JointTable([[0.5, 0.6]]), "sum to 1, got 1.1; for counts"),
        (lambda: JointTable([1.5, -0.5]), "at least 0, got -0.5"),
        (lambda: JointTable([0.5, 0.5], ["a", "b"]), "names must be 1 different"),
        (lambda: JointTable([[0.5, 0.5]], ["a", "a"]), "names must be 2 different"),
        (lambda: JointTable(1.0), "at least one variable"),
        (lambda: JointTable([float("nan")]), "finite"),
        (lambda: JointTable.from_counts([0, 0]), "not all 0"),
        (lambda: JointTable.from_counts([-1, 2]), "at least 0"),
        (lambda: JointTable.from_data([0, 1]), r"\[N, V\]"),
        (lambda: JointTable.from_data([[0, 1]], sizes=[1, 1]), "sizes must be above"),
        (lambda: JointTable.from_data([[0, 1]], sizes=[1]), "sizes must be above"),
        (lambda: table().marginal("d"), "unknown variable 'd'"),
        (lambda: table().marginal(), "at least one"),
        (lambda: table().marginal("a", "a"), "different variables"),
        (lambda: table().conditional("a", "a"), "different variables"),
        (lambda: table().conditional((), "a"), "of must name"),
        (lambda: table().given(b=3), "b must be an integer from 0 to 2, got 3"),
        (lambda: table().given(b=1.0), "got 1.0"),
        (lambda: table().given(d=0), "unknown variable 'd'"),
        (lambda: table().given(a=0, b=0, c=0), "leave at least one"),
        (lambda: JointTable([[0.0, 0.0], [0.4, 0.6]]).given(x0=0), "x0 = 0 has probability 0"),
        (lambda: JointTable([[0.0, 0.0], [0.4, 0.6]]).conditional("x1", "x0"), "x0 = 0 has probability 0"),
        (lambda: ConditionalTable([[0.4, 0.5]], of="a", given="b"), "sum to 1, got 0.9"),
        (lambda: FRUIT.times(JointTable([0.2, 0.3, 0.5], ["box"])), "marginal must have the variables"),
        (lambda: FRUIT.times(table()), "unknown variable 'box'"),
    ],
)
def test_bad_tables_raise(call, words):
    with pytest.raises(InputError, match=words):
        call()
