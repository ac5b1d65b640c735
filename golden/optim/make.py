"""Ends of optimizer trajectories, and gradients of the z-loss, as the tests of `optim` and `kernels-cpu` write them down.

python golden/optim/make.py    (torch, transformers, numpy; prints one line a value list)
"""
import numpy as np
import torch
from transformers.optimization import Adafactor

torch.set_default_dtype(torch.float64)


def show(what, *tensors):
    values = [v for t in tensors for v in t.detach().flatten().tolist()]
    print(f"{what}: " + " ".join(f"{v:.9f}" for v in values))


def regression(what, make, steps):
    """Least squares on four points of y = 3 x1 + x2 - 2, sum of squared errors, zero start."""
    x = torch.tensor([[2.0, 1.0], [7.0, 4.0], [-4.0, 12.0], [5.0, 8.0]])
    y = 3 * x[:, 0] + x[:, 1] - 2
    w, b = torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = make([w, b])
    for _ in range(steps):
        optimizer.zero_grad()
        (x @ w + b - y).square().sum().backward()
        optimizer.step()
    show(what, w, b)


def matrix_gradient(t):
    return torch.tensor([[np.cos(3 * i + 5 * j + t) for j in range(3)] for i in range(2)])


def start():
    return torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])


def adafactor(what, **options):
    p, v = start().requires_grad_(), torch.tensor([0.3, -0.6], requires_grad=True)
    optimizer = Adafactor([p, v], clip_threshold=1.0, **options)
    for t in range(1, 6):
        p.grad = matrix_gradient(t)
        v.grad = torch.tensor([np.sin(2 * i + t) for i in range(2)])
        optimizer.step()
    show(what, p, v)


def orthogonalised(u):
    x = u / (u.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def muon(what, scale):
    p, m = start(), torch.zeros(2, 3)
    for t in range(1, 4):
        g = matrix_gradient(t)
        m = m.lerp(g, 0.05)
        p = p * (1 - 0.02 * 0.1) - 0.02 * scale * orthogonalised(g.lerp(m, 0.95))
    show(what, p)


regression("sgd", lambda p: torch.optim.SGD(p, lr=0.004), 1000)
regression("momentum", lambda p: torch.optim.SGD(p, lr=0.0005, momentum=0.9), 20)
regression("nesterov", lambda p: torch.optim.SGD(p, lr=0.0005, momentum=0.9, nesterov=True), 20)
adafactor("adafactor scaled", lr=0.05, scale_parameter=True, relative_step=False, weight_decay=0.1)
adafactor("adafactor momentum", lr=0.05, scale_parameter=False, relative_step=False, beta1=0.9)
adafactor("adafactor relative", lr=None, scale_parameter=True, relative_step=True)
muon("muon jordan", 1.0)
muon("muon moonlight", 0.2 * 3**0.5)

p = start().requires_grad_()
optimizer = torch.optim.Muon([p], lr=0.02, weight_decay=0.1)
for t in range(1, 4):
    p.grad = matrix_gradient(t)
    optimizer.step()
show("torch.optim.Muon, iteration in bf16", p)

x = torch.tensor([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]], requires_grad=True)
w = torch.tensor([[1.0, 0.5], [-0.5, 2.0], [0.25, -1.25], [1.5, 1.0]], requires_grad=True)
logits, targets = x @ w.T, torch.tensor([2, 0, 1])
losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
(losses.mean() + 0.1 * torch.logsumexp(logits, -1).square().mean()).backward()
show("z-loss: losses, dx, dweight", losses, x.grad, w.grad)
