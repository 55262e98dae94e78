"""Random graphs that change between steps, compared with rows by autograd.

Every graph is a short program: parameters, and a function ``losses(t)`` that is run in eight
steps. In step 5 something may change: a hook is added or begins to act, an argument, an index, the
order of the memory, a type, a parameter, a coefficient that was zero. Gramian, ``.grad`` for fixed
weights, UPGrad and Jacobian, in both memory modes, must be those of autograd on the same program
with the same random numbers, in every step.

**What is right.** The rows are those of ``torch.autograd.grad`` of one objective alone, and
``.grad`` is Jᵀw of these rows. Where a hook or a custom function is not linear in the gradient (it
clips, it normalises), this is a choice: one backward pass of the weighted sum of the losses would
give another ``.grad``. Each objective alone is what a loop over the objectives gives, what the
Gramian is the Gramian of, and what does not depend on the other objectives of the batch. A graph
may also be refused with a ``GraphError``; refusals are counted. Any other exception is a failure.

**How exact.** Half precision is compared with rows in the same half precision. An error is accepted
if it is below ``compare.TOLERANCE``, relative to the lengths of the rows of this parameter; where
it is larger, rounding is measured: the rows are computed again for losses times factors near 1,
which in exact arithmetic changes nothing.

More graphs, or one again::

    python -m tests.engines.fuzz --seed 7 --graphs 3000 --dtype float32
    python -m tests.engines.fuzz --seed 1234 --graphs 1 --dtype float32

Graph i of a run has the seed ``seed + i``. A failure is made smaller and printed as a script.
"""
