# mypy: disable-error-code="no-untyped-def"
# ruff: noqa: N803 - constants of the compiler are upper case, as in Triton's own kernels
"""Triton kernels of the operator on maps up to 64x64: transform, mixed response and inverse transform in one launch.

Shapes: B batch, H height, W width, C channels, K orders in the mix, R rows or columns in a strip. Inside a kernel H, W and C
are those of a tile: a few channels, and sides padded to a power of two of at least 16, which `tl.dot` needs. `height`, `width`
and `channels` are those of the map. Padding is loaded as zeros, and so are the padded rows and columns of D.

A program takes all positions of a few channels of one image and needs nothing from other programs. A tile is (C, H, W), so that
the paper's X^ = D_H X D_W^T and X = D_H^T X^ D_W are batched products. They go through the map in strips:

    U = D_H X                                        R rows of X at a time
    X^ = U D_W^T, filtered, and V = V + X^ D_W       R columns of frequencies at a time
    Y = D_H^T V                                      R rows of Y at a time

So the spectrum is never held as a whole, only U and V. Products accumulate in float32; U, V and the filtered columns are
rounded to the dtype of the map where they enter the next product. Neighbouring channels are neighbours in memory, so a program
with a single channel would read a sector of memory for each of its values.

Nothing is saved for the backward pass, which transforms the map a second time. Gradients of scales, weights and orders are sums
over the map, a number for each image and channel: no atomics, so they are the same in every run.

`tail_triton` imports this file when a kernel is first needed; no other file imports triton.
"""

import math
import os
from typing import Final

import triton
import triton.language as tl

from . import dct

__all__ = ["backward_kernel", "forward_kernel"]

PI: Final = tl.constexpr(math.pi)
MAX_GAIN: Final = tl.constexpr(dct.MAX_GAIN)
INTERPRETED: Final = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
R: Final = tl.constexpr(16)  # the least that `tl.dot` takes

UNSPECIALIZED: Final = ("height", "width", "mix_stride")  # else sizes that are multiples of 16 would be compiled again


@triton.jit(do_not_specialize=UNSPECIALIZED)
def forward_kernel(
    x_ptr,  # (B, H, W, C)
    y_ptr,  # (B, H, W, C)
    d_h_ptr,  # (H, H), in the dtype of the map
    d_w_ptr,  # (W, W)
    mix_ptr,  # (B or 1, 2 or 3, K, C) in float32: scales, weights, and orders unless they are numbers
    normalized_ptr,  # (C,), or None
    height,
    width,
    channels,
    mix_stride,  # from one image to the next, 0 if the mix is the same for all
    spacing,
    K: tl.constexpr,
    ORDERS: tl.constexpr,  # K numbers, or None
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
):
    """Y = D_H^T (sum_k w_k exp(-k_k rho^(alpha_k/2)) * D_H X D_W^T) D_W."""
    b, c = _image_and_channels(channels, C)
    mix = mix_ptr + b.to(tl.int64) * mix_stride + c
    normalized = _normalized(normalized_ptr, c, channels)
    u = _enter(x_ptr, d_h_ptr, normalized, normalized_ptr is not None, b, c, height, width, channels, H, W, C)
    v, squares = tl.zeros((C, H, W), tl.float32), tl.zeros((C, H, 1), tl.float32)
    for n in tl.range(0, width, R):
        d_w = _matrix(d_w_ptr, n, 0, width, R, W, C)
        rho = _squared_frequencies(n, height, width, spacing, H)
        z = _dot(u, tl.permute(d_w, (0, 2, 1)))
        z *= _response(rho, mix, c < channels, channels, K, ORDERS)
        if normalized_ptr is not None:
            z = tl.where(rho > 0, z, (1 - normalized) * z)
            squares += tl.sum(z * z, 2, keep_dims=True)
        v = _dot(z.to(d_w.dtype), d_w, v)
    if normalized_ptr is not None:
        v *= 1 + normalized * (_inverse_rms(squares, height * width) - 1)
    _leave(v, y_ptr, d_h_ptr, b, c, height, width, channels, H, W, C)


@triton.jit(do_not_specialize=UNSPECIALIZED)
def backward_kernel(
    x_ptr,  # (B, H, W, C)
    dy_ptr,  # (B, H, W, C)
    dx_ptr,  # (B, H, W, C)
    dmix_ptr,  # (B, 2 or 3, K, C) in float32
    d_h_ptr,
    d_w_ptr,
    mix_ptr,
    normalized_ptr,
    height,
    width,
    channels,
    mix_stride,
    spacing,
    K: tl.constexpr,
    ORDERS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    SLOTS: tl.constexpr,  # K, padded to a power of two
):
    """Gradients of `forward_kernel` for the map, and for the mix of every image, also where all share one mix.

    With P the product of the spectrum and its gradient, those of the mix are sums of P h_k rho^(alpha_k/2), of P (h_k - h_K)
    and, for learned orders, of P h_k rho^(alpha_k/2) log rho, each with its factor.
    """
    b, c = _image_and_channels(channels, C)
    mix = mix_ptr + b.to(tl.int64) * mix_stride + c
    normalized = _normalized(normalized_ptr, c, channels)
    u = _enter(x_ptr, d_h_ptr, normalized, normalized_ptr is not None, b, c, height, width, channels, H, W, C)
    du = _enter(dy_ptr, d_h_ptr, normalized, False, b, c, height, width, channels, H, W, C)
    gain, along = 1.0, 0.0
    if normalized_ptr is not None:
        gain, along = _normalization(u, du, d_w_ptr, mix, normalized, c, height, width, channels, spacing, K, ORDERS, H, W, C)
    v, slot = tl.zeros((C, H, W), tl.float32), tl.arange(0, SLOTS)[None, None, :]
    to_scales, to_weights = tl.zeros((C, H, SLOTS), tl.float32), tl.zeros((C, H, SLOTS), tl.float32)
    to_orders = tl.zeros((C, H, SLOTS), tl.float32)
    for n in tl.range(0, width, R):
        d_w = _matrix(d_w_ptr, n, 0, width, R, W, C)
        rho = _squared_frequencies(n, height, width, spacing, H)
        log_rho = tl.log(tl.where(rho > 0, rho, 1.0))
        response = _response(rho, mix, c < channels, channels, K, ORDERS)
        x = _dot(u, tl.permute(d_w, (0, 2, 1)))
        dz = _dot(du, tl.permute(d_w, (0, 2, 1)))
        if normalized_ptr is not None:
            dz = gain * dz - along * x * response
            dz = tl.where(rho > 0, dz, (1 - normalized) * dz)  # dx has no mean then, as if it were centred like x
        v = _dot((dz * response).to(d_w.dtype), d_w, v)

        p = x * dz
        last, _ = _one_response(K - 1, rho, mix, c < channels, channels, K, ORDERS)
        for k in tl.static_range(K):
            h, power = _one_response(k, rho, mix, c < channels, channels, K, ORDERS)
            to_scales += tl.where(slot == k, tl.sum(p * h * power, 2, keep_dims=True), 0.0)
            to_weights += tl.where(slot == k, tl.sum(p * (h - last), 2, keep_dims=True), 0.0)  # 0 for the last order
            if ORDERS is None:
                to_orders += tl.where(slot == k, tl.sum(p * h * power * log_rho, 2, keep_dims=True), 0.0)
    _leave(v, dx_ptr, d_h_ptr, b, c, height, width, channels, H, W, C)
    _store_gradients(to_scales, to_weights, to_orders, mix, dmix_ptr, b, c, slot, channels, K, ORDERS)


@triton.jit
def _store_gradients(
    to_scales,  # (C, H, SLOTS), sums over the width; so are the next two
    to_weights,
    to_orders,
    mix,
    dmix_ptr,
    b,
    c,
    slot,
    channels,
    K: tl.constexpr,
    ORDERS: tl.constexpr,
):
    """Sum over the height, and the factors that do not depend on the frequency."""
    known = (c < channels) & (slot < K)
    scale = tl.load(mix + slot * channels, mask=known, other=0.0)  # (C, 1, SLOTS)
    weight = tl.load(mix + (K + slot) * channels, mask=known & (slot < K - 1), other=0.0)
    weight = tl.where(slot == K - 1, 1 - tl.sum(weight, 2, keep_dims=True), weight)
    dmix = dmix_ptr + b.to(tl.int64) * ((2 if ORDERS is not None else 3) * K * channels) + slot * channels + c
    tl.store(dmix, -weight * tl.sum(to_scales, 1, keep_dims=True), mask=known)
    tl.store(dmix + K * channels, tl.sum(to_weights, 1, keep_dims=True), mask=known)
    if ORDERS is None:
        tl.store(dmix + 2 * K * channels, -0.5 * weight * scale * tl.sum(to_orders, 1, keep_dims=True), mask=known)


@triton.jit
def _image_and_channels(channels, C: tl.constexpr):
    """The image of this program, and its channels, (C, 1, 1). Neighbouring programs read the same sectors of memory."""
    blocks = tl.cdiv(channels, C)
    program = tl.program_id(0)
    return program // blocks, (program % blocks) * C + tl.arange(0, C)[:, None, None]


@triton.jit
def _normalized(ptr, c, channels):
    """1 for normalized channels, else 0, (C, 1, 1); the number 0 if there are none."""
    return 0.0 if ptr is None else tl.load(ptr + c, mask=c < channels, other=0.0).to(tl.float32)


@triton.jit
def _rows(i, b, c, height, width, channels, W: tl.constexpr):
    """Where the rows i .. i + R of a tile are in the map, and which positions exist, (C, R, W)."""
    rows, columns = i + tl.arange(0, R)[None, :, None], tl.arange(0, W)[None, None, :]
    at = b.to(tl.int64) * height * width * channels + ((rows * width + columns) * channels + c)
    return at, (rows < height) & (columns < width) & (c < channels)


@triton.jit
def _matrix(ptr, m, i, n, M: tl.constexpr, N: tl.constexpr, C: tl.constexpr):
    """M rows from m and N columns from i of the (n, n) matrix D, for every channel of a tile, (C, M, N)."""
    rows, columns = m + tl.arange(0, M)[None, :, None], i + tl.arange(0, N)[None, None, :]
    d = tl.load(ptr + rows * n + columns, mask=(rows < n) & (columns < n), other=0.0)
    return tl.broadcast_to(d, (C, M, N))


@triton.jit
def _dot(a, b, sum_so_far=None):
    """Batched products in float32, exactly: not in TF32."""
    if INTERPRETED:  # the interpreter would multiply the bits of bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sum_so_far, input_precision="ieee")


@triton.jit
def _enter(
    x_ptr,
    d_h_ptr,
    normalized,
    CENTRED: tl.constexpr,
    b,
    c,
    height,
    width,
    channels,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
):
    """U = D_H X, (C, H, W) in the dtype of the map; normalized channels are centred first."""
    mean = 0.0
    if CENTRED:
        sums = tl.zeros((C, 1, W), tl.float32)
        for i in tl.range(0, height, R):
            at, inside = _rows(i, b, c, height, width, channels, W)
            sums += tl.sum(tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32), 1, keep_dims=True)
        mean = normalized * (tl.sum(sums, 2, keep_dims=True) / (height * width))
    u = tl.zeros((C, H, W), tl.float32)
    for i in tl.range(0, height, R):
        at, inside = _rows(i, b, c, height, width, channels, W)
        x = tl.load(x_ptr + at, mask=inside, other=0.0)
        d_h = _matrix(d_h_ptr, 0, i, height, H, R, C)
        if CENTRED:
            x = tl.where(inside, x.to(tl.float32) - mean, 0.0).to(d_h.dtype)
        u = _dot(d_h, x, u)
    return u.to(d_h_ptr.dtype.element_ty)


@triton.jit
def _leave(
    v,
    y_ptr,
    d_h_ptr,
    b,
    c,
    height,
    width,
    channels,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
):
    """Store Y = D_H^T V."""
    v = v.to(d_h_ptr.dtype.element_ty)
    for i in tl.range(0, height, R):
        at, inside = _rows(i, b, c, height, width, channels, W)
        d_h = _matrix(d_h_ptr, 0, i, height, H, R, C)
        y = _dot(tl.permute(d_h, (0, 2, 1)), v)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _squared_frequencies(n, height, width, spacing, H: tl.constexpr):
    """rho = w_m^2 + w_n^2 with w_m = pi m / H and w_n = pi n / W, over the spacing, for columns n .. n + R, (1, H, R)."""
    w_m = tl.arange(0, H)[None, :, None] * PI / (height * spacing)
    w_n = (n + tl.arange(0, R))[None, None, :] * PI / (width * spacing)
    return w_m * w_m + w_n * w_n


@triton.jit
def _one_response(k: tl.constexpr, rho, mix, known, channels, K: tl.constexpr, ORDERS: tl.constexpr):
    """h_k = exp(-k_k rho^(alpha_k/2)), (C, H, R), and the power of rho, which is (1, H, R) if ORDERS are numbers."""
    scale = tl.load(mix + k * channels, mask=known, other=0.0)
    order = tl.load(mix + (2 * K + k) * channels, mask=known, other=1.0) if ORDERS is None else ORDERS[k]
    power = tl.exp2(0.5 * order * tl.log2(tl.where(rho > 0, rho, 1.0)))
    power = tl.where(rho > 0, power, 0.0)
    return tl.exp(-scale * power), power


@triton.jit
def _response(rho, mix, known, channels, K: tl.constexpr, ORDERS: tl.constexpr):
    """sum_k w_k h_k as h_K + sum_(k<K) w_k (h_k - h_K): exactly 1 at rho = 0, (C, H, R)."""
    last, _ = _one_response(K - 1, rho, mix, known, channels, K, ORDERS)
    mixed = last
    for k in tl.static_range(K - 1):
        h, _ = _one_response(k, rho, mix, known, channels, K, ORDERS)
        mixed += tl.load(mix + (K + k) * channels, mask=known, other=0.0) * (h - last)
    return mixed


@triton.jit
def _inverse_rms(squares, count):
    """One over the root mean square of every channel, at most MAX_GAIN, (C, 1, 1)."""
    mean_square = tl.sum(squares, 1, keep_dims=True) / count
    return tl.rsqrt(1 + mean_square * (MAX_GAIN * MAX_GAIN)) * MAX_GAIN


@triton.jit
def _normalization(
    u,
    du,
    d_w_ptr,
    mix,
    normalized,
    c,
    height,
    width,
    channels,
    spacing,
    K: tl.constexpr,
    ORDERS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
):
    """For Y^ = gain * Z: the gain and a factor so that dZ = gain * dY^ - factor * Z, both (C, 1, 1)."""
    squares, products = tl.zeros((C, H, 1), tl.float32), tl.zeros((C, H, 1), tl.float32)
    for n in tl.range(0, width, R):
        d_w = _matrix(d_w_ptr, n, 0, width, R, W, C)
        rho = _squared_frequencies(n, height, width, spacing, H)
        z = _dot(u, tl.permute(d_w, (0, 2, 1)))
        z *= _response(rho, mix, c < channels, channels, K, ORDERS)
        z = tl.where(rho > 0, z, (1 - normalized) * z)
        dy = _dot(du, tl.permute(d_w, (0, 2, 1)))
        squares += tl.sum(z * z, 2, keep_dims=True)
        products += tl.sum(z * dy, 2, keep_dims=True)
    inverse = _inverse_rms(squares, height * width)
    mean_product = tl.sum(products, 1, keep_dims=True) / (height * width)
    return 1 + normalized * (inverse - 1), normalized * inverse * (inverse * (inverse * mean_product))
