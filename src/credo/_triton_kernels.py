# mypy: ignore-errors
"""The Triton code of :mod:`credo.kernels`; imported only where Triton is there."""

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)
"""The smallest normal number of float32, off which σ and its derivative are kept."""
HALF_LOG_TWO_PI = tl.constexpr(0.9189385332046727)


@triton.jit
def softplus(x):
    """log(1 + eˣ), accurate where eˣ is small: with u the rounded 1 + e, log(1 + e) = e·log(u)/(u − 1)."""
    e = tl.exp(-tl.abs(x))
    u = 1.0 + e
    rounded = u - 1.0
    tail = tl.where(rounded == 0.0, e, e * (tl.log(u) / tl.where(rounded == 0.0, 1.0, rounded)))
    return tl.maximum(x, 0.0) + tail


@triton.jit
def slope(x):
    """The derivative of softplus."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, e) / (1.0 + e)


@triton.jit
def scale_and_kl(mean, rho, prior_scale, value, partial, n, SQUARED: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    m = tl.load(mean + i, inside, 0.0)
    s = tl.load(prior_scale)
    sigma = tl.maximum(softplus(tl.load(rho + i, inside, 0.0)), TINY)
    if SQUARED:
        tl.store(value + i, 0.5 * sigma * sigma, inside)
    else:
        tl.store(value + i, sigma, inside)
    kl = tl.log(s) - tl.log(sigma) + 0.5 * ((sigma * sigma + m * m) / (s * s) - 1.0)
    tl.store(partial + tl.program_id(0), tl.sum(tl.where(inside, kl, 0.0), 0))


@triton.jit
def scale_and_kl_backward(
    mean,
    rho,
    prior_scale,
    grad_value,
    grad_kl,
    grad_mean,
    grad_rho,
    n,
    SQUARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    r = tl.load(rho + i, inside, 0.0)
    g = tl.load(grad_value + i, inside, 0.0)
    c = tl.load(grad_kl)
    s = tl.load(prior_scale)
    pull = c / (s * s)
    sigma = tl.maximum(softplus(r), TINY)
    derivative = tl.maximum(slope(r), TINY)
    grad_sigma = (g + pull) * sigma if SQUARED else g + sigma * pull
    tl.store(grad_mean + i, tl.load(mean + i, inside, 0.0) * pull, inside)
    tl.store(grad_rho + i, (grad_sigma - c / sigma) * derivative, inside)


@triton.jit
def mixture_kl(
    mean,
    rho,
    draw,
    partial,
    wide,
    odds,
    fall,
    precision,
    n,
    IS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    m = tl.load(mean + i, inside, 0.0)
    sigma = tl.maximum(softplus(tl.load(rho + i, inside, 0.0)), TINY)
    d = tl.load(draw + i, inside, 0.0)
    w = d if IS_WEIGHT else m + sigma * d
    epsilon = (d - m) / sigma if IS_WEIGHT else d
    log_q = -tl.log(sigma) - 0.5 * epsilon * epsilon - HALF_LOG_TWO_PI
    log_p = wide + softplus(odds - fall * w * w) - precision * w * w
    tl.store(partial + tl.program_id(0), tl.sum(tl.where(inside, log_q - log_p, 0.0), 0))


@triton.jit
def mixture_kl_backward(
    mean,
    rho,
    draw,
    grad,
    grad_mean,
    grad_rho,
    wide,
    odds,
    fall,
    precision,
    n,
    IS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    m = tl.load(mean + i, inside, 0.0)
    r = tl.load(rho + i, inside, 0.0)
    d = tl.load(draw + i, inside, 0.0)
    c = tl.load(grad)
    sigma = tl.maximum(softplus(r), TINY)
    w = d if IS_WEIGHT else m + sigma * d
    epsilon = (d - m) / sigma if IS_WEIGHT else d
    grad_w = 2.0 * c * w * (precision + fall * slope(odds - fall * w * w))
    tl.store(grad_mean + i, grad_w, inside)
    derivative = tl.maximum(slope(r), TINY)
    tl.store(grad_rho + i, (grad_w * epsilon - c / sigma) * derivative, inside)


@triton.jit
def adam_change(p, grad, first, second, lr, decay, beta1, beta2, eps, correction1, correction2, i, inside):
    """−lr·m̂/(√v̂ + ε), with both moments updated."""
    g = tl.load(grad + i, inside, 0.0) + decay * p
    m = beta1 * tl.load(first + i, inside, 0.0) + (1.0 - beta1) * g
    v = beta2 * tl.load(second + i, inside, 0.0) + (1.0 - beta2) * g * g
    tl.store(first + i, m, inside)
    tl.store(second + i, v, inside)
    return -(lr / correction1) * m / (tl.sqrt(v) / tl.sqrt(correction2) + eps)


@triton.jit
def natural_adam(
    mean,
    grad_mean,
    first_mean,
    second_mean,
    rho,
    grad_rho,
    first_rho,
    second_rho,
    lr_mean,
    lr_rho,
    step,
    ratio,
    decay_mean,
    decay_rho,
    beta1,
    beta2,
    log_beta1,
    log_beta2,
    eps,
    n,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    t = tl.load(step).to(tl.float64)
    correction1 = (1.0 - tl.exp(t * log_beta1)).to(tl.float32)
    correction2 = (1.0 - tl.exp(t * log_beta2)).to(tl.float32)
    r = tl.load(rho + i, inside, 0.0)
    m = tl.load(mean + i, inside, 0.0)
    r += adam_change(
        r,
        grad_rho,
        first_rho,
        second_rho,
        tl.load(lr_rho),
        decay_rho,
        beta1,
        beta2,
        eps,
        correction1,
        correction2,
        i,
        inside,
    )
    tl.store(rho + i, r, inside)
    change = adam_change(
        m,
        grad_mean,
        first_mean,
        second_mean,
        tl.load(lr_mean),
        decay_mean,
        beta1,
        beta2,
        eps,
        correction1,
        correction2,
        i,
        inside,
    )
    tl.store(mean + i, m + tl.maximum(ratio * softplus(r), 1.0) * change, inside)


@triton.jit
def add_noise(output, half_variance, noise, result, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    deviation = tl.sqrt(2.0 * tl.maximum(tl.load(half_variance + i, inside, 0.0), TINY))
    epsilon = tl.load(noise + i, inside, 0.0)
    tl.store(result + i, tl.load(output + i, inside, 0.0) + deviation * epsilon, inside)
    tl.store(noise + i, epsilon / deviation, inside)


@triton.jit
def normal_pair(radial, angular):
    """Two independent standard normal numbers of twice 32 random bits, by the transform of Box and Muller.

    The angle is one of −π/4 to π/4, of 30 bits, where short Taylor series of sine and cosine have errors below 3e-8;
    the other bits reflect it into the other quadrants.
    """
    radius = tl.sqrt(-2.0 * tl.log((radial.to(tl.float32) + 0.5) * 2.3283064365386963e-10))
    radius = tl.where((angular >> 31) == 0, radius, -radius)
    x = (((angular & 0x3FFFFFFF).to(tl.int32) - 536870912).to(tl.float32) + 0.5) * 1.4629180792671596e-09
    square = x * x
    sine = square * (-1.984126984126984e-04 + square * 2.7557319223985893e-06)
    sine = x * (1.0 + square * (-1.6666666666666666e-01 + square * (8.333333333333333e-03 + sine)))
    cosine = square * (-1.388888888888889e-03 + square * 2.48015873015873e-05)
    cosine = 1.0 + square * (-0.5 + square * (4.1666666666666664e-02 + cosine))
    is_steep = ((angular >> 30) & 1) == 1
    return radius * tl.where(is_steep, sine, cosine), radius * tl.where(is_steep, cosine, sine)


@triton.jit(do_not_specialize=["draws"])
def gaussian_draws(
    mean,
    scale,
    seed,
    numbers,
    table,
    out,
    draws,
    ANTITHETIC: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program computes 4·BLOCK weights of GROUP draws; its row of ``table`` says where they go."""
    block = tl.program_id(0)
    start = tl.multiple_of(tl.load(table + 3 * block), 32)
    gap = tl.multiple_of(tl.load(table + 3 * block + 1), 32)
    size = tl.multiple_of(tl.load(table + 3 * block + 2), 32)
    key = tl.load(seed)
    lane = tl.arange(0, BLOCK)
    counter = (block * BLOCK + lane).to(tl.uint32)
    i0 = block.to(tl.int64) * 4 * BLOCK + lane
    i1, i2, i3 = i0 + BLOCK, i0 + 2 * BLOCK, i0 + 3 * BLOCK
    m0, m1, m2, m3 = tl.load(mean + i0), tl.load(mean + i1), tl.load(mean + i2), tl.load(mean + i3)
    s0, s1, s2, s3 = tl.load(scale + i0), tl.load(scale + i1), tl.load(scale + i2), tl.load(scale + i3)
    for k in range(GROUP):
        row = tl.program_id(1) * GROUP + k
        if row < draws:
            number = tl.load(numbers + row)
            stream = number >> 1 if ANTITHETIC else number
            zero = counter * 0
            low, high = zero + (stream & 0xFFFFFFFF).to(tl.uint32), zero + (stream >> 32).to(tl.uint32)
            r0, r1, r2, r3 = tl.philox(key, counter, low, high, zero)
            e0, e1 = normal_pair(r0, r1)
            e2, e3 = normal_pair(r2, r3)
            if ANTITHETIC:
                sign = 1.0 - 2.0 * (number & 1).to(tl.float32)
                e0, e1, e2, e3 = sign * e0, sign * e1, sign * e2, sign * e3
            target = out + start + row * gap + lane
            tl.store(target, m0 + s0 * e0, lane < size)
            tl.store(target + BLOCK, m1 + s1 * e1, lane + BLOCK < size)
            tl.store(target + 2 * BLOCK, m2 + s2 * e2, lane + 2 * BLOCK < size)
            tl.store(target + 3 * BLOCK, m3 + s3 * e3, lane + 3 * BLOCK < size)
