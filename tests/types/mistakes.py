"""A mistake in every line of the function, each of which a type checker must find."""

import torch
from torch import nn

import lightning_jd
from lightning_jd import JacobianDescent, backward
from lightning_jd.aggregators import Mean, UPGrad


def mistakes() -> None:
    JacobianDescent("upgrad", row="tasks")
    JacobianDescent("upgrad", rows="task")
    JacobianDescent("upgrad", split="term")
    JacobianDescent("upgrad", groups="layers")
    JacobianDescent("upgrad", reg=1e-3)
    JacobianDescent("upgrad", examples=0.5)
    backward(torch.ones(2), nn.Linear(1, 1), "upgrad", selec="all")
    backward(torch.ones(2), nn.Linear(1, 1), "upgrad", nonfinite="skp")
    Mean(reg=3)
    UPGrad(regularisation=3)
    lightning_jd.JacobianDecent()
    lightning_jd.fabric.backwards()
