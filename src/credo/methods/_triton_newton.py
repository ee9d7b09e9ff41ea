# mypy: ignore-errors
"""The Triton code of :mod:`credo.methods._newton_kernels`; imported only where Triton is there."""

import triton
import triton.language as tl

from credo._triton_kernels import TINY, slope, softplus


@triton.jit
def shifted_weights(mean, rho, noise, weight, shift, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    moved = tl.maximum(softplus(tl.load(rho + i, inside, 0.0)), TINY) * tl.load(noise + i, inside, 0.0)
    tl.store(shift + i, moved, inside)
    tl.store(weight + i, tl.load(mean + i, inside, 0.0) + moved, inside)


@triton.jit
def kl_weight(steps, length):
    """The weight of the KL after so many steps of its warm-up, at least one step's worth."""
    return tl.where(length > 0, tl.minimum(tl.maximum(steps, 1).to(tl.float32) / tl.maximum(length, 1), 1.0), 1.0)


@triton.jit
def inverse_softplus(x):
    """x + log(1 − e⁻ˣ), accurate where x is small: with u the rounded e⁻ˣ, 1 − e⁻ˣ = x·(1 − u)/(−log(u))."""
    u = tl.exp(-x)
    one = (u == 1.0) | (u == 0.0)
    fall = x * (1.0 - u) / tl.where(one, 1.0, -tl.log(u))
    return x + tl.log(tl.where(u == 1.0, x, tl.where(u == 0.0, 1.0, fall)))


@triton.jit
def newton_squares(rho, grad, partial, n, BLOCK: tl.constexpr):
    """Sums of (σ·ĝ)² over blocks."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    u = tl.maximum(softplus(tl.load(rho + i, inside, 0.0)), TINY) * tl.load(grad + i, inside, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(u * u, 0))


@triton.jit
def newton_limits(
    partial,
    bounds,
    sizes,
    squares,
    limits,
    step,
    warmup_steps,
    warmup_length,
    n_data,
    beta1,
    log_beta1,
    radius,
    LONGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The running mean of u² of a tensor, and by how much its steps are shortened; a program for every tensor."""
    k = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    first, end = tl.load(bounds + k), tl.load(bounds + k + 1)
    for start in range(0, LONGEST, BLOCK):
        i = first + start + tl.arange(0, BLOCK)
        total += tl.load(partial + i, i < end, 0.0)
    count = n_data / kl_weight(tl.load(warmup_steps), tl.load(warmup_length))
    found = count * count * (tl.sum(total, 0) / tl.load(sizes + k))
    old = tl.load(squares + k)
    square = old + (1.0 - beta1) * (found - old)
    tl.store(squares + k, square)
    correction = (1.0 - tl.exp(tl.load(step).to(tl.float64) * log_beta1)).to(tl.float32)
    deviation = tl.sqrt(square / correction)
    tl.store(limits + k, tl.minimum(radius / tl.maximum(deviation, TINY), 1.0))


@triton.jit
def newton_step(
    mean,
    rho,
    grad,
    noise,
    momentum,
    limit,
    lr,
    step,
    warmup_steps,
    warmup_length,
    n_data,
    beta1,
    beta2,
    log_beta1,
    prior_steps,
    center,
    precision,
    clip,
    n,
    IS_SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A step of one tensor; ``noise`` is θ − m, or the gradient of ρ."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    t = tl.load(step)
    done, length = tl.load(warmup_steps), tl.load(warmup_length)
    now, following = kl_weight(done, length), kl_weight(done + 1, length)
    correction = (1.0 - tl.exp(t.to(tl.float64) * log_beta1)).to(tl.float32)
    weight_of_new = tl.maximum(1.0 / (t + prior_steps), 1.0 - beta2)

    m, r, g = tl.load(mean + i, inside, 0.0), tl.load(rho + i, inside, 0.0), tl.load(grad + i, inside, 0.0)
    e = tl.load(noise + i, inside, 0.0)
    sigma = tl.maximum(softplus(r), TINY)
    curvature = g * e if IS_SHIFT else e * (sigma / tl.maximum(slope(r), TINY))
    pull = sigma * sigma * precision
    k = 1.0 + weight_of_new * (n_data / now * curvature + pull - 1.0)
    growth = (1.0 + k * k) * (now / following) + pull * (2.0 - 2.0 * now / following)
    sigma = sigma * 1.4142135623730951 / tl.sqrt(growth)
    tl.store(rho + i, inverse_softplus(sigma), inside)

    first = beta1 * tl.load(momentum + i, inside, 0.0) + (1.0 - beta1) * g
    tl.store(momentum + i, first, inside)
    change = (n_data / following / correction * first + precision * (m - center)) * sigma * sigma * tl.load(limit)
    change = tl.minimum(tl.maximum(change, -clip), clip)
    tl.store(mean + i, m - tl.load(lr) * change, inside)
